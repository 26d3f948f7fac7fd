"""Copies of boxes without an engine: limits, several at once, and files that no command shows."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from agentloop.boxes import BoxError
from tests.boxes.processes import running


@pytest.fixture(scope="module")
def provider_name():
    return "rootfs"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_several_copies_are_made_at_once_while_the_box_works(box):
    await box.exec("for i in $(seq 200); do echo $i > /srv/$i; done")
    work = asyncio.ensure_future(box.exec("while :; do echo x > /tmp/new; rm /tmp/new; done", timeout=60))
    copies = await asyncio.gather(*(box.fork() for _ in range(4)))
    found = await asyncio.gather(*(copy.exec("cat /srv/* | sort -n | tail -n 1; ls /srv | wc -l") for copy in copies))
    assert [each.stdout for each in found] == ["200\n200\n"] * 4
    await box.kill_processes()
    await work
    for copy in copies:
        await copy.stop()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_copy_has_the_limits_of_its_box(provider, spec):
    box = await provider.start(replace(spec, storage_mb=8, env={"A": "kept"}, workdir="/made"))
    await box.exec("head -c 4000000 /dev/zero > /srv/large")
    copy = await box.fork()
    assert (await copy.exec("echo $A; pwd; stat -c %s /srv/large")).stdout == "kept\n/made\n4000000\n"
    assert (await copy.exec("cp /srv/large /srv/larger && cp /srv/large /srv/largest")).return_code != 0
    await copy.stop()
    await box.stop()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_copied_files_count_as_memory_of_the_copy(provider, spec):
    box = await provider.start(replace(spec, memory_mb=64, storage_mb=128))
    assert (await box.exec("head -c 40000000 /dev/zero > /srv/large")).return_code == 0
    copy = await box.fork()
    assert (await copy.exec("head -c 40000000 /dev/zero > /srv/larger")).return_code == 137
    await copy.stop()
    await box.stop()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_copy_that_does_not_fit_into_its_memory_is_one_error(provider, spec):
    box = await provider.start(spec)
    await box.exec("head -c 40000000 /dev/zero > /srv/large; sleep 5231 &")
    box.spec = replace(box.spec, storage_mb=8)
    with pytest.raises(BoxError, match=f"The copy of the box {box.id} cannot be started: .*No space left on device.$"):
        await box.fork()
    assert (await box.exec("stat -c %s /srv/large")).stdout == "40000000\n"
    assert len(running("sleep 5231")) == 1
    await box.stop()


AS_ROOT = """
import io, json, os, sys
from agentloop.boxes.inside import layer
from agentloop.sandboxes.inside.isolation import libc

user, group = os.geteuid(), os.getegid()
libc.unshare(libc.CLONE_NEWUSER)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
stream = io.BytesIO()
"""
"""Begins a program that is root in a user namespace of its own: it may change its root directory."""


def _run_as_root(code, *arguments):
    done = subprocess.run([sys.executable, "-c", AS_ROOT + code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_layer_keeps_times_attributes_and_deleted_files(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    target.mkdir()
    (source / "folder/odd\udcff name").write_bytes(b"content")
    os.setxattr(source / "folder/odd\udcff name", "user.kept", b"\0\xff=value")
    os.setxattr(source / "folder", "user.overlay.opaque", b"y")
    os.setxattr(source / "folder", "user.overlay.origin", b"handle")
    os.utime(source / "folder", (1, 12345.5))
    code = """
os.mknod(sys.argv[1] + "/gone", 0o020000)
layer.write(stream, os.open(sys.argv[1], os.O_RDONLY))
stream.seek(0)
layer.read(stream, sys.argv[2])
"""
    _run_as_root(code, str(source), str(target))
    assert (target / "folder/odd\udcff name").read_bytes() == b"content"
    assert os.getxattr(target / "folder/odd\udcff name", "user.kept") == b"\0\xff=value"
    assert os.listxattr(target / "folder") == ["user.overlay.opaque"]
    assert (target / "gone").is_char_device()
    assert os.stat(target / "gone").st_rdev == 0
    assert os.stat(target / "folder").st_mtime == 12345.5


@pytest.mark.slow
def test_links_of_a_layer_lead_nowhere_else(tmp_path):
    (tmp_path / "target").mkdir()
    code = """
common = {"owner": [0, 0], "time": 0}
link = {"path": "link", "mode": 0o120777, "target": "../../../.." + sys.argv[1], **common}
file = {"path": "link/new", "mode": 0o100644, "size": 0, **common}
for head in (link, file):
    data = json.dumps(head).encode()
    stream.write(len(data).to_bytes(4, "big") + data)
stream.write(bytes(4))
stream.seek(0)
os.makedirs(sys.argv[1] + "/target" + sys.argv[1])
layer.read(stream, sys.argv[1] + "/target")
"""
    _run_as_root(code, str(tmp_path))
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "target" / str(tmp_path)[1:] / "new").exists()
