"""Images of boxes without an engine: archives, layers, Dockerfiles and registries."""

import asyncio
import hashlib
import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from agentloop import boxes
from agentloop.boxes import Image
from agentloop.boxes.images.layers import unpack
from agentloop.boxes.images.store import ImageStore
from agentloop.errors import UserError

pytestmark = pytest.mark.slow


def archive(path, *entries):
    """Write a tar archive of (name, type, content or link, mode)."""
    with tarfile.open(path, "w") as made:
        for name, kind, content, mode in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, mode
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = content
            member.size = len(content) if kind == tarfile.REGTYPE else 0
            made.addfile(member, io.BytesIO(content.encode()) if kind == tarfile.REGTYPE else None)
    return path


def test_modes_links_and_owners_are_kept(tmp_path):
    path = archive(
        tmp_path / "a.tar",
        ("tmp", tarfile.DIRTYPE, "", 0o1777),
        ("su", tarfile.REGTYPE, "program", 0o4755),
        ("link", tarfile.SYMTYPE, "/etc/passwd", 0o777),
        ("same", tarfile.LNKTYPE, "su", 0o4755),
        ("device", tarfile.CHRTYPE, "", 0o666),
    )
    (tmp_path / "tree").mkdir()
    unpack(path, tmp_path / "tree")
    assert {each.name for each in (tmp_path / "tree").iterdir()} == {"tmp", "su", "link", "same"}
    assert stat.S_IMODE((tmp_path / "tree/tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "tree/su").stat().st_mode) == 0o4755
    assert os.readlink(tmp_path / "tree/link") == "/etc/passwd"
    assert (tmp_path / "tree/same").stat().st_ino == (tmp_path / "tree/su").stat().st_ino


@pytest.mark.parametrize(
    "entries",
    [
        [("../outside", tarfile.REGTYPE, "x", 0o644)],
        [("link", tarfile.SYMTYPE, "..", 0o777), ("link/outside", tarfile.REGTYPE, "x", 0o644)],
        [("link", tarfile.SYMTYPE, "..", 0o777), ("link/.wh.kept", tarfile.REGTYPE, "", 0o644)],
        [("../.wh.kept", tarfile.REGTYPE, "", 0o644)],
        [("hard", tarfile.LNKTYPE, "../kept", 0o644)],
        [("link", tarfile.SYMTYPE, "..", 0o777), ("hard", tarfile.LNKTYPE, "link/kept", 0o644)],
        [(".wh...", tarfile.REGTYPE, "", 0o644)],
        [("folder", tarfile.DIRTYPE, "", 0o755), ("folder/.wh...", tarfile.REGTYPE, "", 0o644)],
        [(".wh..", tarfile.REGTYPE, "", 0o644)],
    ],
)
def test_nothing_is_written_outside_of_the_directory(tmp_path, entries):
    (tmp_path / "tree").mkdir()
    (tmp_path / "kept").write_text("kept")
    with pytest.raises(UserError, match="is not a root file system"):
        unpack(archive(tmp_path / "a.tar", *entries), tmp_path / "tree", is_layer=True)
    assert (tmp_path / "kept").read_text() == "kept"
    assert not (tmp_path / "outside").exists()


def test_a_hard_link_to_a_symbolic_link_does_not_follow_it(tmp_path):
    entries = ("link", tarfile.SYMTYPE, "/etc/passwd", 0o777), ("hard", tarfile.LNKTYPE, "link", 0o777)
    (tmp_path / "tree").mkdir()
    unpack(archive(tmp_path / "a.tar", *entries), tmp_path / "tree")
    assert os.readlink(tmp_path / "tree/hard") == "/etc/passwd"


@pytest.mark.parametrize("first", ["deletion", "file"])
def test_a_layer_that_deletes_and_makes_a_name_shows_only_its_own(tmp_path, first):
    made = [
        ("a", tarfile.DIRTYPE, "", 0o755),
        ("a/new", tarfile.REGTYPE, "x", 0o644),
        ("b", tarfile.REGTYPE, "x", 0o644),
    ]
    deleted = [(".wh.a", tarfile.REGTYPE, "", 0o644), (".wh.b", tarfile.REGTYPE, "", 0o644)]
    tree = tmp_path / "tree"
    tree.mkdir()
    entries = deleted + made if first == "deletion" else made + deleted
    unpack(archive(tmp_path / "a.tar", *entries), tree, is_layer=True)
    assert os.getxattr(tree / "a", "user.overlay.opaque") == b"y"
    assert (tree / "a/new").read_text() == (tree / "b").read_text() == "x"


def test_a_damaged_archive_is_one_clear_error(tmp_path):
    (tmp_path / "tree").mkdir()
    entries = ("a", tarfile.REGTYPE, "x", 0o644), ("a/b", tarfile.REGTYPE, "x", 0o644)
    with pytest.raises(UserError, match="is not a root file system"):
        unpack(archive(tmp_path / "a.tar", *entries), tmp_path / "tree")


FULL_DISK = """
import sys
from pathlib import Path
from agentloop.boxes import Image
from agentloop.boxes.images.store import ImageStore
from agentloop.errors import UserError
try:
    ImageStore(Path(sys.argv[1]) / "images").get(Image(tarball=Path(sys.argv[2])))
except UserError as error:
    print(error, [path for path in Path(sys.argv[1]).glob("images/*") if path.is_dir()])
"""


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path):
    path = archive(tmp_path / "a.tar", ("large", tarfile.REGTYPE, "x" * (2 << 20), 0o644))
    (tmp_path / "small").mkdir()
    (tmp_path / "try.py").write_text(FULL_DISK)
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$0" "$3" "$1" "$2"'
    command = ["sh", "-c", script, sys.executable, tmp_path / "small", path, tmp_path / "try.py"]
    printed = subprocess.check_output(["unshare", "--map-root-user", "--mount", *command], text=True)
    assert "No space left on device. Free space there, or set the option `folder`" in printed
    assert printed.endswith(" []\n")


def layout(folder, layers):
    """Write an image of (archive) layers in OCI's layout, and return a reference to it."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    parts = [put(layer.read_bytes(), "layer.v1.tar") for layer in layers]
    files = {"type": "layers", "diff_ids": [part["digest"] for part in parts]}
    config = put(json.dumps({"architecture": "amd64", "os": "linux", "rootfs": files}).encode(), "config.v1+json")
    manifest = put(json.dumps({"schemaVersion": 2, "config": config, "layers": parts}).encode(), "manifest.v1+json")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return f"oci:{folder}"


async def test_a_box_has_an_image_of_sixty_layers(tmp_path, tree, spec):
    with tarfile.open(tmp_path / "base.tar", "w") as made:
        made.add(tree, ".")
    layers = [tmp_path / "base.tar"]
    for number in range(59):  # each deletes the file of the one below
        entries = [
            (f"srv/{number}", tarfile.REGTYPE, "x", 0o644),
            (f"srv/.wh.{number - 1}", tarfile.REGTYPE, "", 0o644),
        ]
        layers.append(archive(tmp_path / f"{number}.tar", *entries[: 2 if number else 1]))
    image = Image(reference=layout(tmp_path / "layout", layers))
    provider = boxes.create("rootfs", folder=str(tmp_path / "images"))
    await provider.open()
    try:
        assert await seen(provider, replace(spec, image=image), "ls /srv") == "58\n"
    finally:
        await provider.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Start a registry and yield its address."""
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    server = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(address.split(":"), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "the registry did not start"
            time.sleep(0.05)
    yield address
    server.terminate()
    server.wait()


@pytest.fixture
def context(tmp_path, tree):
    """Return a folder whose Dockerfile deletes, replaces and hides what a layer below has."""
    folder = tmp_path / "context"
    folder.mkdir()
    with tarfile.open(folder / "base.tar", "w") as made:
        made.add(tree, ".")
    (folder / "note").write_text("noted\n")
    (folder / "Dockerfile").write_text(
        "FROM scratch\nADD base.tar /\nENV COLOR=blue\n"
        "RUN mkdir -p /data/old /data/kept && echo 1 > /data/old/a && echo 2 > /data/kept/b\n"
        "RUN chmod 4755 /bin/busybox\n"
        "RUN rm /etc/group && rm -r /data/old && mkdir /data/old && echo 3 > /data/old/c\n"
        "WORKDIR /srv\nCOPY note .\nUSER worker\n"
    )
    return folder


async def seen(provider, spec, command):
    box = await provider.start(spec)
    try:
        return (await box.exec(command)).stdout
    finally:
        await box.stop()


LOOK = "pwd; id -un; echo $COLOR; cat note; find /data | sort; ls /etc/group 2>&1; stat -c %a /bin/busybox"
SEEN = (
    "/srv\nworker\nblue\nnoted\n/data\n/data/kept\n/data/kept/b\n/data/old\n/data/old/c\n"
    "ls: /etc/group: No such file or directory\n4755\n"
)


async def test_a_dockerfile_is_built_and_its_layers_are_shared(tmp_path, context, spec, monkeypatch):
    provider = boxes.create("rootfs", folder=str(tmp_path / "images"))
    await provider.open()
    try:
        assert await seen(provider, replace(spec, image=Image(dockerfile=context)), LOOK) == SEEN
        trees = set((tmp_path / "images").glob("sha256-*"))
        other = tmp_path / "other"
        shutil.copytree(context, other)
        (other / "note").write_text("changed\n")
        built = replace(spec, image=Image(dockerfile=other))
        assert await seen(provider, built, LOOK) == SEEN.replace("noted", "changed")
        assert len(set((tmp_path / "images").glob("sha256-*")) - trees) <= 2, "the layers below are the same"
        monkeypatch.setenv("PATH", "/nowhere")  # the built image needs no program
        assert await seen(provider, built, "cat note") == "changed\n"
    finally:
        await provider.close()


@pytest.mark.parametrize("way", ["whole name", "name on Docker Hub", "base of a Dockerfile"])
async def test_an_image_is_pulled_from_a_registry(tmp_path, context, spec, registry, way, monkeypatch):
    """Names without a registry are those of Docker Hub, whose place the registry of the test takes."""
    name = f"{registry}/tasks/tool:1"
    storage = ["--root", tmp_path / "s", "--runroot", tmp_path / "r"]
    await asyncio.to_thread(_buildah, *storage, "build", "-q", "--isolation", "chroot", "-t", name, context)
    await asyncio.to_thread(_buildah, *storage, "push", "-q", "--tls-verify=false", name)
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n'
        f'[[registry]]\nprefix = "docker.io"\nlocation = "{registry}"\ninsecure = true\n'
    )
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    (tmp_path / "derived").mkdir()
    (tmp_path / "derived/Dockerfile").write_text("FROM tasks/tool:1\nENV COLOR=green\n")
    image = {
        "whole name": Image(reference=name),
        "name on Docker Hub": Image(reference="tasks/tool:1"),
        "base of a Dockerfile": Image(dockerfile=tmp_path / "derived"),
    }[way]
    provider = boxes.create("rootfs", folder=str(tmp_path / "images"))
    await provider.open()
    try:
        color = "green" if image.dockerfile else "blue"
        assert await seen(provider, replace(spec, image=image), LOOK) == SEEN.replace("blue", color)
        with pytest.raises(UserError, match=rf"The image {registry}/no:such of a box is unavailable:\n"):
            await provider.prepare(Image(reference=f"{registry}/no:such"))
    finally:
        await provider.close()


def test_two_builds_at_once_build_once(tmp_path, context):
    stores = [ImageStore(tmp_path / "images") for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda store: store.get(Image(dockerfile=context)), stores)
    assert first == second
    assert len(list((tmp_path / "images").glob("built-*/image.json"))) == 1


_BUSY = "Close_Fd sealing memfd copy: Device or resource busy"


def _buildah(*arguments):
    for _ in range(5):
        done = subprocess.run(["buildah", *arguments], capture_output=True, text=True)
        if _BUSY not in done.stderr:
            break
    assert done.returncode == 0, done.stderr


def test_a_build_that_fails_because_the_machine_is_busy_is_repeated(tmp_path, context, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    seen, real = tmp_path / "seen", shutil.which("buildah")
    (programs / "buildah").write_text(
        f"#!/bin/sh\nif mkdir {seen}; then echo '{_BUSY}' >&2; exit 1; fi\nexec {real} \"$@\"\n"
    )
    (programs / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert ImageStore(tmp_path / "images").get(Image(dockerfile=context)).layers
    assert seen.exists()


def test_a_failed_build_is_one_clear_error(tmp_path, context, monkeypatch):
    store = ImageStore(tmp_path / "images")
    with pytest.raises(UserError, match=r"Dockerfile .*/nowhere/Dockerfile does not exist"):
        store.get(Image(dockerfile=tmp_path / "nowhere"))
    (context / "Dockerfile").write_text("FROM scratch\nADD base.tar /\nRUN echo reason; exit 3\n")
    with pytest.raises(UserError, match=r"(?s)The Dockerfile of .* cannot be built:.*exit status 3"):
        store.get(Image(dockerfile=context))
    assert list((tmp_path / "images").glob("built-*/image.json")) == []
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(), "a failed build leaves no mount"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="needs buildah"):
        store.get(Image(dockerfile=context))
