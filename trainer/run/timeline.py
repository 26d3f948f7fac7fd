"""A trace of a run for ui.perfetto.dev or chrome://tracing.

The first track shows the stages of the run. Episodes follow, in as many lanes as overlap, with their seconds of
generation and in tools. Counters show metrics of each step. Each Ray worker is a process of the trace, with its
episodes, and so is each learner rank, with the phases of its steps.

The file is an array in Chrome's trace event format. It grows during the run; phases are added at the end. The trace of
a killed run lacks the phases and the closing bracket, but the viewers still open it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentloop.trainer.learner.metrics import recording
from agentloop.trainer.schedule.observers import Observer, Part, Stage

if TYPE_CHECKING:
    from agentloop.config.run import TrainingConfig
    from agentloop.types.trajectory import Trajectory

_COUNTERS = ("reward/mean", "time/tokens_per_second", "time/mfu", "learner/memory_peak_gib")
_RUN = 1
"""Process id of the run in the trace."""
_OF_AN_EPISODE = ("seconds_generating", "seconds_in_tools", "turns", "calls")


class Timeline(Observer):
    """Writes timeline-STEP.json to the run folder, and forwards every event to another observer.

    STEP is the number of completed steps when the process started.
    """

    def __init__(
        self,
        observer: Observer,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = recording.now,
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._started, self._started_at = clock(), wall_clock()
        self._folder: Path | None = None
        self._file: IO[str] | None = None
        self._stage: tuple[str, int, float] | None = None
        self._lanes: dict[int, list[float]] = {}
        """End time of the last episode in each lane, by process."""

    def on_start(self, config: TrainingConfig, folder: Path, done: int) -> None:
        self._observer.on_start(config, folder, done)
        self._file = (folder / f"timeline-{done}.json").open("w", encoding="utf-8")
        self._file.write("[\n")
        self._folder = folder
        self._write({"ph": "M", "name": "process_name", "args": {"name": "run"}})
        self._write({"ph": "M", "name": "thread_name", "tid": 0, "args": {"name": "stages"}})

    def on_stage(self, step: int, stage: Stage) -> None:
        self._observer.on_stage(step, stage)
        self._end_stage()
        self._stage = str(stage), step, self._now()

    def on_part(self, part: Part, seconds: float | None) -> None:
        self._observer.on_part(part, seconds)

    def on_trajectory(self, step: int, trajectory: Trajectory) -> None:
        self._observer.on_trajectory(step, trajectory)
        end = self._now()
        start = end - trajectory.metrics.get("seconds", 0.0)
        pid = int(trajectory.metrics.get("worker_pid", _RUN))
        if pid not in self._lanes and pid != _RUN:
            self._write({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker {pid}"}})
        lanes = self._lanes.setdefault(pid, [])
        lane = next((lane for lane, free in enumerate(lanes) if free <= start), len(lanes))
        lanes[lane : lane + 1] = [end]
        known = {name: trajectory.metrics[name] for name in _OF_AN_EPISODE if name in trajectory.metrics}
        name = f"episode {trajectory.stop_reason or ''}".strip()
        self._span(name, lane + 1, start, end, {"step": step, "tokens": len(trajectory), **known}, pid=pid)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._observer.on_step(step, metrics)
        for name in _COUNTERS:
            if name in metrics:
                self._write({"ph": "C", "name": name, "ts": self._now() * 1e6, "args": {"value": metrics[name]}})
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Add the spans of other processes and end the file."""
        self._end_stage()
        self._add_processes()
        if self._file is not None:
            self._file.write("{}]\n")
            self._file.close()
            self._file = None

    def _add_processes(self) -> None:
        """Add the spans that other processes, or other parts of this process, recorded since the run started."""
        pids: dict[str, int] = {}
        for process, span in recording.read_spans(self._folder) if self._folder is not None else ():
            start = span.start - self._started_at
            if start < 0:  # recorded before this run was resumed
                continue
            if process not in pids:
                pids[process] = len(pids) + 2
                self._write({"ph": "M", "name": "process_name", "pid": pids[process], "args": {"name": process}})
            self._span(span.name, 0, start, start + span.seconds, {}, pid=pids[process])

    def _end_stage(self) -> None:
        if self._stage is not None:
            name, step, start = self._stage
            self._span(name, 0, start, self._now(), {"step": step})
            self._stage = None

    def _span(
        self, name: str, track: int, start: float, end: float, values: Mapping[str, Any], *, pid: int = _RUN
    ) -> None:
        times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
        self._write({"ph": "X", "pid": pid, "name": name, "tid": track, **times, "args": dict(values)})

    def _now(self) -> float:
        return self._clock() - self._started

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"pid": _RUN, **event}) + ",\n")


@contextmanager
def watching(observer: Observer, *, timeline: bool) -> Iterator[Observer]:
    """Yield the observer for a run: `observer`, or a `Timeline` that forwards to it if `timeline` is set."""
    if not timeline:
        yield observer
        return
    traced = Timeline(observer)
    try:
        yield traced
    finally:
        traced.close()
