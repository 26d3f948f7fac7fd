import subprocess
import sys
import threading
import time

import pytest

from agentloop.errors import UserError
from agentloop.trainer.run.checkpoints import CheckpointWriter, RunState, latest_checkpoint, remove_unfinished

pytestmark = pytest.mark.slow


class Learner:
    """A learner whose state is one file. Writing it may wait, fail, or die half way."""

    def __init__(self, weights="whole", may_write=None, error=None):
        self.weights = weights
        self.may_write = may_write
        self.error = error

    def capture(self):
        return captured_of(self)


def captured_of(learner):
    weights, may_write, error = learner.weights, learner.may_write, learner.error

    class Captured:
        def write(self, folder):
            folder.mkdir()
            (folder / "weights").write_text("half")
            if may_write is not None:
                assert may_write.wait(10)
            if error is not None:
                raise error
            (folder / "weights").write_text(weights)

    return Captured()


def save(folder, learner, state, *, keep_last):
    writer = CheckpointWriter(folder, keep_last=keep_last)
    writer.save(learner, state)
    try:
        writer.wait()
    finally:
        writer.close()


def state(step):
    return RunState(step, {"num_tasks": 4, "num_taken": step * 2}, {"a": {"b": 1}})


def test_newest_checkpoint_is_found_with_its_state(tmp_path):
    for step in (9, 10, 1_000_000):
        save(tmp_path, Learner(), state(step), keep_last=5)
    folder, found = latest_checkpoint(tmp_path)
    assert found == state(1_000_000)
    assert (folder / "weights").read_text() == "whole"


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, Learner(), state(step), keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None


def test_failed_save_leaves_the_previous_checkpoint(tmp_path):
    save(tmp_path, Learner(), state(1), keep_last=1)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, Learner(error=KeyboardInterrupt()), state(2), keep_last=1)
    assert latest_checkpoint(tmp_path)[1] == state(1)


def test_unfinished_checkpoints_are_not_found_and_are_removed(tmp_path):
    save(tmp_path, Learner(), state(1), keep_last=1)
    (tmp_path / "step_000002.tmp" / "learner").mkdir(parents=True)
    (tmp_path / "step_000002.tmp" / "state.json").write_text("{}")
    (tmp_path / "step_000003").mkdir()  # being removed: its state is gone already
    assert latest_checkpoint(tmp_path)[1] == state(1)
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_learner_continues_while_its_checkpoint_is_written(tmp_path):
    may_write = threading.Event()
    learner = Learner("of step 1", may_write)
    writer = CheckpointWriter(tmp_path, keep_last=2)
    writer.save(learner, state(1))
    learner.weights = "of step 2"
    assert latest_checkpoint(tmp_path) is None
    may_write.set()
    writer.save(learner, state(2))  # waits for the first
    assert latest_checkpoint(tmp_path)[1].step >= 1
    writer.close()
    assert (tmp_path / "step_000001" / "learner" / "weights").read_text() == "of step 1"
    assert (tmp_path / "step_000002" / "learner" / "weights").read_text() == "of step 2"


def test_write_error_is_raised_and_the_previous_checkpoint_stays(tmp_path):
    writer = CheckpointWriter(tmp_path, keep_last=1)
    writer.save(Learner(), state(1))
    writer.save(Learner(error=OSError(28, "No space left on device")), state(2))
    with pytest.raises(UserError, match=r"could not be written.*No space left on device.*Make room"):
        writer.save(Learner(), state(3))
    writer.save(Learner(), state(4))
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_kill_during_a_write_leaves_the_previous_checkpoint(tmp_path):
    program = """
import sys, time
from pathlib import Path
from agentloop.trainer.run.checkpoints import CheckpointWriter, RunState

class Learner:
    def __init__(self, seconds):
        self.seconds = seconds
    def capture(self):
        return self
    def write(self, folder):
        folder.mkdir()
        (folder / "weights").write_text("half")
        time.sleep(self.seconds)
        (folder / "weights").write_text("whole")

writer = CheckpointWriter(Path(sys.argv[1]), keep_last=1)
for step, seconds in ((1, 0), (2, 60)):
    writer.save(Learner(seconds), RunState(step, {"num_tasks": 4, "num_taken": step * 2}, {"a": {"b": 1}}))
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    half = tmp_path / ".tmp-step_000002" / "learner" / "weights"
    deadline = time.monotonic() + 60
    while not half.is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert half.is_file()
    folder, found = latest_checkpoint(tmp_path)
    assert found == state(1)
    assert (folder / "weights").read_text() == "whole"
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
