import asyncio
import json
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


async def save(folder, learner, state, *, keep_last):
    writer = CheckpointWriter(folder, keep_last=keep_last)
    await writer.save(learner, state)
    try:
        await writer.wait()
    finally:
        await writer.close()


def state(step):
    return RunState(step, {"num_tasks": 4, "num_taken": step * 2}, {"a": {"b": 1}})


async def test_newest_checkpoint_is_found_with_its_state(tmp_path):
    for step in (9, 10, 1_000_000):
        await save(tmp_path, Learner(), state(step), keep_last=5)
    folder, found = latest_checkpoint(tmp_path)
    assert found == state(1_000_000)
    assert (folder / "weights").read_text() == "whole"


async def test_only_the_newest_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 3):
        await save(tmp_path, Learner(), state(step), keep_last=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]


@pytest.mark.parametrize(("written", "named"), [({"format": None}, 1), ({"format": 99, "new": 1}, 99)])
async def test_a_checkpoint_of_another_version_is_refused_with_a_way_out(tmp_path, written, named):
    folder = tmp_path / "step_000003"
    folder.mkdir()
    old = {"step": 3, "sampler": {}, "config": {}, "groups": [], **written}
    (folder / "state.json").write_text(json.dumps({key: value for key, value in old.items() if value is not None}))
    with pytest.raises(UserError, match=rf"step_000003 has format {named}, but this version .* only format 2\. Finish"):
        latest_checkpoint(tmp_path)


async def test_a_damaged_checkpoint_is_named_with_a_way_out(tmp_path):
    for step in (2, 3):
        await save(tmp_path, Learner(), state(step), keep_last=2)
    (tmp_path / "step_000003" / "state.json").write_text('{"step": 3, "sam')
    with pytest.raises(UserError, match=r"state\.json is damaged .* Remove .*step_000003 to resume from the"):
        latest_checkpoint(tmp_path)


def test_no_checkpoint_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None


async def test_failed_save_leaves_the_previous_checkpoint(tmp_path):
    await save(tmp_path, Learner(), state(1), keep_last=1)
    with pytest.raises(KeyboardInterrupt):
        await save(tmp_path, Learner(error=KeyboardInterrupt()), state(2), keep_last=1)
    assert latest_checkpoint(tmp_path)[1] == state(1)


async def test_unfinished_checkpoints_are_not_found_and_are_removed(tmp_path):
    await save(tmp_path, Learner(), state(1), keep_last=1)
    (tmp_path / ".tmp-step_000002" / "learner").mkdir(parents=True)
    (tmp_path / ".tmp-step_000002" / "state.json").write_text("{}")
    (tmp_path / ".old-step_000003").mkdir()
    assert latest_checkpoint(tmp_path)[1] == state(1)
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


async def test_learner_continues_while_its_checkpoint_is_written(tmp_path):
    may_write = threading.Event()
    learner = Learner("of step 1", may_write)
    writer = CheckpointWriter(tmp_path, keep_last=2)
    await writer.save(learner, state(1))
    learner.weights = "of step 2"
    assert latest_checkpoint(tmp_path) is None
    may_write.set()
    await writer.save(learner, state(2))  # waits for the first
    assert latest_checkpoint(tmp_path)[1].step >= 1
    await writer.close()
    assert (tmp_path / "step_000001" / "learner" / "weights").read_text() == "of step 1"
    assert (tmp_path / "step_000002" / "learner" / "weights").read_text() == "of step 2"


async def test_write_error_is_raised_and_the_previous_checkpoint_stays(tmp_path):
    writer = CheckpointWriter(tmp_path, keep_last=1)
    await writer.save(Learner(), state(1))
    await writer.save(Learner(error=OSError(28, "No space left on device")), state(2))
    with pytest.raises(UserError, match=r"is full \(No space left on device\). Make room"):
        await writer.save(Learner(), state(3))
    await writer.save(Learner(), state(4))
    await writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


async def test_folders_of_others_stay(tmp_path):
    names = ["step_000001-best", "step_000002.bak", "notes", "export"]
    for name in names:
        (tmp_path / name).mkdir()
    await save(tmp_path, Learner(), state(1), keep_last=1)
    await save(tmp_path, Learner(), state(2), keep_last=1)
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "step_000002"])


async def test_the_event_loop_runs_while_a_slow_disk_holds_up_a_checkpoint(tmp_path):
    """Each wait ends only if the event loop answers meanwhile: on the loop it would wait in vain."""
    may_capture, may_write = threading.Event(), threading.Event()

    class Slow(Learner):
        def capture(self):
            assert may_capture.wait(10), "the event loop is held"
            return captured_of(self)

    writer = CheckpointWriter(tmp_path, keep_last=2)
    saving = asyncio.create_task(writer.save(Slow(may_write=may_write), state(1)))
    await asyncio.sleep(0.01)
    may_capture.set()
    await saving
    again = asyncio.create_task(writer.save(Learner(), state(2)))  # waits for the first
    await asyncio.sleep(0.01)
    assert not again.done()
    may_write.set()
    await again
    await writer.close()
    assert latest_checkpoint(tmp_path)[1] == state(2)


def test_kill_during_a_write_leaves_the_previous_checkpoint(tmp_path):
    program = """
import asyncio, sys, time
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

async def run():
    writer = CheckpointWriter(Path(sys.argv[1]), keep_last=1)
    for step, seconds in ((1, 0), (2, 60)):
        await writer.save(Learner(seconds), RunState(step, {"num_tasks": 4, "num_taken": step * 2}, {"a": {"b": 1}}))
    await asyncio.sleep(60)

asyncio.run(run())
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
