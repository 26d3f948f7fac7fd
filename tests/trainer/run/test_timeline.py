import json
from pathlib import Path

from agentloop.config.records import RecordingConfig
from agentloop.trainer.learner.metrics.recording import Recorder, Span
from agentloop.trainer.run.timeline import Timeline
from agentloop.trainer.schedule.observers import Observer, Stage
from agentloop.types.trajectory import Trajectory


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Seen(Observer):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, config, folder, done) -> None:
        self.calls.append("start")

    def on_stage(self, step, stage) -> None:
        self.calls.append(stage)

    def on_trajectory(self, step, trajectory) -> None:
        self.calls.append("trajectory")

    def on_step(self, step, metrics) -> None:
        self.calls.append("step")


def test_stages_episodes_and_counters_have_their_times(tmp_path: Path):
    clock, seen = _Clock(), _Seen()
    timeline = Timeline(seen, clock)
    timeline.on_start(None, tmp_path, 3)  # type: ignore[arg-type]
    timeline.on_stage(4, Stage.ROLLOUT)
    for end, seconds in ((2.0, 1.5), (3.0, 2.0), (5.0, 1.5)):  # the third begins when the first has ended
        clock.now = 100.0 + end
        timeline.on_trajectory(4, Trajectory(metrics={"seconds": seconds, "seconds_in_tools": 0.5}))
    clock.now = 106.0
    timeline.on_stage(4, Stage.TRAIN)
    clock.now = 108.0
    timeline.on_step(4, {"reward/mean": 0.25, "learner/loss": 1.0})
    timeline.close()

    assert seen.calls == ["start", "rollout", "trajectory", "trajectory", "trajectory", "train", "step"]
    events = [event for event in json.loads((tmp_path / "timeline-3.json").read_text()) if event]
    spans = [(event["name"].split()[0], event["tid"], event["ts"], event["dur"]) for event in events if "dur" in event]
    assert spans == [
        ("episode", 1, 0.5e6, 1.5e6),
        ("episode", 2, 1.0e6, 2.0e6),
        ("episode", 1, 3.5e6, 1.5e6),
        ("rollout", 0, 0.0, 6e6),
        ("train", 0, 6e6, 2e6),
    ]
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"value": 0.25}]
    assert next(event for event in events if event["ph"] == "X")["args"]["seconds_in_tools"] == 0.5


def test_trace_of_a_killed_run_can_be_read(tmp_path: Path):
    timeline = Timeline(Observer(), _Clock())
    timeline.on_start(None, tmp_path, 0)  # type: ignore[arg-type]
    timeline.on_stage(1, Stage.ROLLOUT)
    timeline.on_stage(1, Stage.TRAIN)
    timeline.on_step(1, {})
    events = json.loads((tmp_path / "timeline-0.json").read_text() + "{}]")
    assert [event["name"] for event in events if "dur" in event] == ["rollout"]


def test_workers_and_learner_ranks_are_separate_processes(tmp_path: Path):
    clock = _Clock()
    timeline = Timeline(Observer(), clock, wall_clock=lambda: 1000.0)
    timeline.on_start(None, tmp_path, 0)  # type: ignore[arg-type]
    for end, pid in ((2.0, 77.0), (3.0, 78.0), (4.0, 77.0)):
        clock.now = 100.0 + end
        timeline.on_trajectory(1, Trajectory(metrics={"seconds": 2.0, "worker_pid": pid}))
    for rank in range(2):
        of_rank = RecordingConfig(folder=str(tmp_path), spans=True)
        Recorder(of_rank, rank).write(
            [Span("before the run", 999.0, 0.5), Span("forward_backward", 1005.0 + rank, 1.0)]
        )
    timeline.close()

    events = [event for event in json.loads((tmp_path / "timeline-0.json").read_text()) if event]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [(processes[event["pid"]], event["tid"], event["ts"] / 1e6) for event in events if event["ph"] == "X"]
    assert spans == [
        ("worker 77", 1, 0.0),
        ("worker 78", 1, 1.0),
        ("worker 77", 1, 2.0),
        ("learner-rank0", 0, 5.0),
        ("learner-rank1", 0, 6.0),
    ]
