"""Profiles of chosen steps, and the spans that every rank of the learner writes."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agentloop.config.loading import load_config
from agentloop.config.records import RecordingConfig
from agentloop.config.run import RunConfig
from agentloop.trainer.learner.metrics.recording import Recorder, named
from agentloop.trainer.run.timeline import watching
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer

pytestmark = pytest.mark.slow


def _names(path: Path) -> list[str]:
    with gzip.open(path, "rt") as file:
        return [event["name"] for event in json.load(file)["traceEvents"]]


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "profiles").glob("*"))


@pytest.mark.parametrize(
    ("discrete", "expected"),
    [
        (False, ["learner-rank0-step2-3.json.gz", "learner-rank0-step5.json.gz"]),
        (True, [f"learner-rank0-step{step}.json.gz" for step in (2, 3, 5)]),
    ],
)
def test_profiles_of_steps_in_any_thread(tmp_path: Path, discrete: bool, expected: list[str]):
    recorder = Recorder(RecordingConfig(folder=str(tmp_path), steps=(2, 3, 5), discrete=discrete), rank=0)

    def step(number: int) -> None:
        with recorder.step(number), named(f"of step {number}"):
            pass
        with named(f"after step {number}"):
            pass

    for number in range(1, 7):
        thread = threading.Thread(target=step, args=(number,))
        thread.start()
        thread.join()
    assert _files(tmp_path) == expected
    first = _names(tmp_path / "profiles" / expected[0])
    assert "of step 2" in first
    assert "of step 1" not in first
    assert ("of step 3" in first, "after step 2" in first) == (not discrete, not discrete)


def test_other_ranks_and_steps_leave_nothing(tmp_path: Path):
    for recorder in (
        Recorder(RecordingConfig(folder=str(tmp_path), steps=(1,)), rank=1),
        Recorder(RecordingConfig(folder=str(tmp_path), steps=(2,), ranks=None), rank=1),
        Recorder(None, rank=0),
    ):
        with recorder.step(1):
            pass
        recorder.write([])
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("warm_ray")
async def test_a_run_on_two_ranks_has_one_timeline_and_a_profile_of_the_chosen_rank(sums: Path):
    overrides = ["run.steps=2", "learner.ranks=2", "run.loggers=[]", "eval.every=0"]
    profiler = ["profiler.timeline=true", "profiler.steps=[2]", "profiler.ranks=[1]"]
    config = load_config(RunConfig, sums / "config.yaml", [*overrides, *profiler])
    folder = sums / "profiled"
    with watching(Observer(), timeline=True) as observer:
        await train(config, folder, observer)

    assert _files(folder) == ["learner-rank1-step2.json.gz"]
    assert "forward_backward" in _names(folder / "profiles" / "learner-rank1-step2.json.gz")
    events: list[dict[str, Any]] = [event for event in json.loads((folder / "timeline-0.json").read_text()) if event]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(processes.values()) == ["learner-rank0", "learner-rank1", "run"]
    spans = [event for event in events if event["ph"] == "X"]
    trains = [event for event in spans if event["name"] == "train"]
    for rank in range(2):
        phases = [event for event in spans if processes[event["pid"]] == f"learner-rank{rank}"]
        assert [event["name"] for event in phases] == ["forward_backward", "optimizer"] * 2
        for stage, first, last in zip(trains, phases[::2], phases[1::2], strict=True):
            # The clocks of stages and phases are two, which may move against each other.
            assert stage["ts"] - 0.1e6 < first["ts"] < last["ts"] + last["dur"] < stage["ts"] + stage["dur"] + 0.1e6
