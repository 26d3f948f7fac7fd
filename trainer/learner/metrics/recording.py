"""Records of one learner process: profiles of selected steps, and spans for the timeline of the run.

Ranks record independently and share only the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentloop.config.records import RecordingConfig

if TYPE_CHECKING:
    import torch


class Span(NamedTuple):
    """A named interval of time."""

    name: str
    start: float
    """Start as a Unix time in seconds."""
    seconds: float


@contextmanager
def named(name: str) -> Iterator[None]:
    """Mark a range with this name in profiles of torch and nsys."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if torch.cuda.is_available():
            torch.cuda.nvtx.range_pop()


class Recorder:
    """Records the steps of one learner on one rank."""

    def __init__(self, config: RecordingConfig | None, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._first: int | None = None
        """First step of the current profile."""
        self._profile: torch.profiler.profile | None = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record a step of the learner, counted from 1.

        One profile covers consecutive selected steps and the work between them, unless profiles are discrete.
        """
        if self._is_chosen(number) and self._first is None:
            self._start(number)
        yield
        config = self._config
        if self._first is not None and config is not None and (config.discrete or not self._is_chosen(number + 1)):
            self._stop(number)

    def write(self, spans: Sequence[Span]) -> None:
        """Append spans for the timeline, if the run has one."""
        if self._config is None or not self._config.spans or not spans:
            return
        path = spans_file(Path(self._config.folder), self._rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(span) + "\n" for span in spans)

    def _is_chosen(self, number: int) -> bool:
        config = self._config
        return config is not None and number in config.steps and (config.ranks is None or self._rank in config.ranks)

    def _start(self, number: int) -> None:
        import torch

        assert self._config is not None
        self._first = number
        if self._config.tool == "nsys":
            if torch.cuda.is_available():
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # The run calls the learner in different threads.
        everywhere: Any = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self._profile = torch.profiler.profile(activities=activities, experimental_config=everywhere)
        self._profile.start()

    def _stop(self, number: int) -> None:
        import torch

        assert self._config is not None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self._profile is not None:
            self._profile.stop()
            steps = str(number) if number == self._first else f"{self._first}-{number}"
            path = Path(self._config.folder) / "profiles" / f"learner-rank{self._rank}-step{steps}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(path))
        elif torch.cuda.is_available():
            torch.cuda.profiler.stop()
        self._first = self._profile = None


def spans_file(folder: Path, rank: int) -> Path:
    """Return the file to which a rank of the learner writes its spans."""
    return folder / "spans" / f"learner-rank{rank}.jsonl"


def read_spans(folder: Path) -> Iterator[tuple[str, Span]]:
    """Yield (process, span) of all processes that wrote spans."""
    for path in sorted((folder / "spans").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.endswith("]"):  # a killed process may leave an incomplete last line
                yield path.stem, Span(*json.loads(line))


def now() -> float:
    """Return the Unix time in seconds, which is comparable between processes of a host."""
    return time.time()
