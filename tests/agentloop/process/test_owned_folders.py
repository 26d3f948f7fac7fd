"""Folders of a process that was killed are removed by the next one; nobody else's are."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.process import owned_folders

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time
from agentloop.process import owned_folders
folder = owned_folders.make("agentloop-x-", sys.argv[1])
(folder / "file").touch()
print(folder, flush=True)
time.sleep(1000)
"""


def test_what_a_killed_process_leaves_goes_with_the_next_one(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE, text=True)
    theirs = tmp_path / owner.stdout.readline().strip()
    mine = owned_folders.make("agentloop-x-", tmp_path)
    other = owned_folders.make("agentloop-y-", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([theirs, mine, other])
    owner.kill()
    owner.communicate()
    another = owned_folders.make("agentloop-y-", tmp_path)
    assert (theirs / "file").exists()
    last = owned_folders.make("agentloop-x-", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, other, another, last])


def test_owners_elsewhere_are_left_alone(tmp_path):
    namespace, pid, started = owned_folders.own_label().split()
    elsewhere = tmp_path / f"agentloop-x-1{namespace}-{pid}-1-abc"
    elsewhere.mkdir()
    (tmp_path / f"agentloop-x-{namespace}-{pid}-1-abc").mkdir()  # the number was used again
    mine = owned_folders.make("agentloop-x-", tmp_path)
    assert mine.name.startswith(f"agentloop-x-{namespace}-{pid}-{started}-")
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, mine])


def test_a_folder_for_sockets_is_in_tmp_if_their_paths_would_be_too_long(tmp_path):
    deep = tmp_path / ("y" * 60)
    deep.mkdir(parents=True)
    folder = owned_folders.make("agentloop-x-", deep, longest_socket=36)
    try:
        assert folder.parent == Path("/tmp")
        listener = socket.socket(socket.AF_UNIX)
        with listener:
            listener.bind(f"{folder}/{'s' * 36}")
    finally:
        shutil.rmtree(folder)
    assert owned_folders.make("agentloop-x-", deep).parent == deep


BLOCK = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from agentloop.process import owned_folders
with owned_folders.temporary("agentloop-z-") as folder:
    print(folder, flush=True)
    sys.stdin.readline()
"""


def test_the_folder_of_a_killed_block_goes_with_the_first_block_of_another_process(tmp_path):
    def start():
        pipe = subprocess.PIPE
        owner = subprocess.Popen([sys.executable, "-c", BLOCK, tmp_path], stdin=pipe, stdout=pipe, text=True)
        return owner, tmp_path / owner.stdout.readline().strip()

    killed, abandoned = start()
    alive, used = start()
    killed.kill()
    killed.communicate()
    assert sorted(tmp_path.iterdir()) == sorted([abandoned, used])
    last, own = start()
    assert sorted(tmp_path.iterdir()) == sorted([used, own])
    for owner in (alive, last):
        owner.communicate("\n")
    assert not list(tmp_path.iterdir())
