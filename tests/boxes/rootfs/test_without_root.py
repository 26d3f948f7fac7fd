"""Boxes of a user who is not root: their features, and errors for those that need root."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

USER = 54321
PROGRAM = """
import asyncio, json, os, sys
from dataclasses import replace
from pathlib import Path
from agentloop import boxes
from agentloop.errors import UserError

async def error_of(work):
    try:
        await work
    except (UserError, boxes.BoxError) as error:
        return f"{type(error).__name__}: {error}"

async def main(home):
    assert os.geteuid() != 0
    provider = boxes.create("rootfs")
    await provider.open()
    spec = boxes.BoxSpec(image=boxes.Image(reference="builtin:busybox"))
    box = await provider.start(spec)
    found = {}
    found["user"] = (await box.exec("id -u; id -un")).stdout.split()
    await box.exec("echo kept > /srv/file; rm /bin/awk; sleep 48181 &")
    copy = await box.fork()
    shown = await copy.exec("cat /srv/file; ls /bin/awk 2>&1 | grep -c No; ps | grep -c 4818[1]")
    found["copy"] = shown.stdout.split()
    (home / "up").mkdir()
    (home / "up/file").write_text("sent")
    await copy.upload(home / "up", "/data")
    await copy.exec("echo more >> /data/file")
    await copy.download("/data", home / "down")
    found["file"] = (home / "down/file").read_text()
    shell = await copy.spawn(["sh", "-c", "tty"], tty=True)
    found["terminal"] = (await shell.read()).decode().strip()
    found["other user"] = await error_of(box.exec("true", user="worker"))
    found["other user of all"] = await error_of(provider.start(replace(spec, user="worker")))
    await box.kill_processes()
    found["left"] = (await box.exec("ps | grep -c 4818[1]")).stdout.strip()
    await provider.close()
    print(json.dumps(found))

asyncio.run(main(Path(sys.argv[1])))
"""
SHOW = """
set -e
mount --bind "$1" "$3"
mount -t tmpfs -o mode=755 tmpfs "$2"
mkdir -p "$1"
mount --bind "$3" "$1"
shift 3
"""
"""Makes the directory $1 below $2, which is closed to others, visible; $3 is an empty directory."""


def _without_root(home, *command):
    """Return a command that another user than root runs, with the Python of this test."""
    if os.geteuid() != 0:
        return command
    os.chown(home, USER, USER)
    lower = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command]
    python = Path(sys.base_prefix).resolve()
    closed = next((each for each in reversed(python.parents) if not each.stat().st_mode & 0o001), None)
    if closed is None:
        return lower
    aside = home / "python"
    aside.mkdir()
    return ["unshare", "--mount", "sh", "-c", SHOW + 'exec "$@"', "sh", str(python), str(closed), str(aside), *lower]


@pytest.fixture(scope="module")
def found():
    """Return what the program found in boxes that another user than root started."""
    home = Path(tempfile.mkdtemp(prefix="agentloop-"))  # the folders of pytest are closed to others
    try:
        command = _without_root(home, sys.executable, "-c", PROGRAM, str(home))
        env = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        shutil.rmtree(home)


def test_the_user_is_root_in_a_box_that_can_be_copied(found):
    assert found["user"] == ["0", "root"]
    assert found["copy"] == ["kept", "1", "0"]
    assert found["file"] == "sentmore\n"
    assert found["terminal"] == "/dev/pts/0"
    assert found["left"] == "0"


def test_other_users_are_one_clear_error(found):
    assert found["other user"].startswith("BoxError: The box has only the user root, not 'worker', because")
    assert "Start agentloop as root" in found["other user of all"]
