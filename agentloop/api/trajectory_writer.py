"""`TrajectoryWriter`: write the episodes of a rollout while others are played."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from agentloop.errors import UserError
from agentloop.process.full_disk import naming_full_disk
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import write_jsonl


class TrajectoryWriter:
    """Appends trajectories to a file in a thread, since to encode the images of one may take longer than a turn.

    A context manager: at its end all trajectories are written, also after an error or Ctrl-C.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "agentloop-trajectories")
        self._writes: deque[Future[None]] = deque()
        self.num_written = 0

    def append(self, trajectory: Trajectory) -> None:
        """Write a trajectory soon. Raises `UserError` if an earlier one could not be written."""
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()
        self._writes.append(self._thread.submit(self._write, trajectory))

    def _write(self, trajectory: Trajectory) -> None:
        with output_errors(self._path.parent):
            write_jsonl(self._path, [trajectory], append=True)
        self.num_written += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._thread.shutdown()
        if error is None:
            for write in self._writes:
                write.result()


@contextmanager
def output_errors(folder: Path) -> Iterator[None]:
    """Raise `UserError` if the output of a rollout cannot be written to its folder."""
    try:
        with naming_full_disk(folder, "and resume the rollout, which keeps the episodes that have ended"):
            yield
    except OSError as error:
        raise UserError(
            f"The rollout cannot write to {folder} any more: {error.strerror}. Play again with another output."
        ) from error
