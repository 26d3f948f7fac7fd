"""A folder has one run at a time, and a killed run leaves no lock."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from agentloop.errors import UserError
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.lock import LOCK, locked

HOLD = """
import sys, time
from pathlib import Path
from agentloop.trainer.run.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_second_run_is_refused_with_the_first_ones_process(tmp_path, holder):
    with pytest.raises(UserError) as caught, locked(tmp_path):
        pass
    assert f"{tmp_path} (process {holder.pid} on {socket.gethostname()}, started 20" in str(caught.value)
    assert "stop it, or set run.folder to another folder." in str(caught.value)


@pytest.mark.slow
def test_a_dry_run_names_the_process_that_uses_the_folder(tmp_path, holder):
    folder = RunFolder(tmp_path / "run")
    folder.check()
    folder.make()
    (folder.root / "config.yaml").write_text("")
    folder.check()
    (folder.root / LOCK).write_text((tmp_path / LOCK).read_text())
    with pytest.raises(UserError, match=f"Another run uses the folder .* \\(process {holder.pid}"):
        folder.check()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_was_killed_leaves_the_folder_free(tmp_path, holder, end):
    holder.send_signal(end)
    holder.wait()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_the_lock_is_free_after_its_block(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert (tmp_path / LOCK).read_text() == ""
    with locked(tmp_path), pytest.raises(UserError, match="Another run"), locked(tmp_path):
        pass


@pytest.fixture
def without_locks(monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_without_kernel_locks_the_record_decides(tmp_path, without_locks):
    with locked(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} on"), locked(tmp_path):
        pass
    with locked(tmp_path):
        record = json.loads((tmp_path / LOCK).read_text())
    namespace, _, _ = record["label"].split()
    gone = record | {"pid": 999999999, "label": f"{namespace} 999999999 1"}
    (tmp_path / LOCK).write_text(json.dumps(gone))
    with locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text(json.dumps(gone | {"host": "another"}))
    with pytest.raises(UserError, match=r"process 999999999 on another.*remove .*run\.lock"), locked(tmp_path):
        pass
