"""Episodes of a rollout are written in order, in a thread, and an error ends the rollout."""

import shutil
import threading
import time
from contextlib import suppress

import pytest

import agentloop
from agentloop.api import evaluation, trajectory_writer
from agentloop.api.progress import EpisodeProgress
from agentloop.api.trajectory_writer import TrajectoryWriter
from agentloop.errors import UserError
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import read_jsonl


def test_trajectories_are_written_in_order_and_not_by_the_thread_that_plays(tmp_path, monkeypatch):
    write, threads = trajectory_writer.write_jsonl, set()

    def slowly(*args, **kwargs):
        threads.add(threading.current_thread())
        time.sleep(0.01)
        return write(*args, **kwargs)

    monkeypatch.setattr(trajectory_writer, "write_jsonl", slowly)
    writer = TrajectoryWriter(tmp_path / "trajectories.jsonl")
    with suppress(KeyboardInterrupt), writer:
        for number in range(5):
            writer.append(Trajectory(trajectory_id=str(number)))
        raise KeyboardInterrupt
    assert [each.trajectory_id for each in read_jsonl(tmp_path / "trajectories.jsonl")] == ["0", "1", "2", "3", "4"]
    assert writer.num_written == 5
    assert threading.current_thread() not in threads


def _append(writer, times):
    with writer:
        for _ in range(times):
            writer.append(Trajectory())
            time.sleep(0.001)


@pytest.mark.parametrize("times", [1, 1000])
def test_an_error_is_raised_at_the_next_trajectory_or_at_the_end(tmp_path, times):
    writer = TrajectoryWriter(tmp_path / "gone" / "trajectories.jsonl")
    with pytest.raises(UserError, match=r"cannot write to .*gone any more: No such file or directory\. Play again"):
        _append(writer, times)


def test_a_folder_that_is_removed_ends_a_rollout_with_one_sentence(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    advance = EpisodeProgress.advance

    def removed(self, count=1):
        shutil.rmtree("played", ignore_errors=True)
        advance(self, count)

    monkeypatch.setattr(EpisodeProgress, "advance", removed)
    with pytest.raises(UserError, match=r"cannot write to played any more: No such file or directory"):
        agentloop.rollout(sums, output="played", progress=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("The key has expired.")])
def test_a_stopped_rollout_says_what_it_has_written(sums, monkeypatch, capsys, error):
    monkeypatch.chdir(sums.parent)

    def stopped(play, workers, requests, ended):
        ended(Trajectory())
        raise error

    monkeypatch.setattr(evaluation, "run_blocking", stopped)
    with pytest.raises(type(error)):
        agentloop.rollout(sums, samples=2, output="played")
    shown = capsys.readouterr().out
    assert "episodes are in played, without a summary; view them: agentloop view played" in shown
    assert "stopped: 1 of " in shown
