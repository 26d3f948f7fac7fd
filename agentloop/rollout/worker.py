"""`RolloutWorker`: many episodes at once against one engine, each at its own pace, gathered into groups."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentloop.engines.episodes import Episode, playing
from agentloop.errors import FailureKind, UserError, raised
from agentloop.rollout.loop import AgentLoop
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.envs.base import Env

_COLLECTION_THRESHOLD = 10_000
"""Objects made and not yet gone, before the collector looks at the youngest ones (Python: 700)."""


@dataclass(slots=True, frozen=True)
class GroupSpec:
    """A task to be played `n` times."""

    group_id: str
    """Unique among the groups in flight."""
    make_env: Callable[[], Env]
    """A fresh environment for each of the n episodes."""
    n: int
    seed: int = 0
    """Episode k of the group runs with seed * n + k."""
    temperature: float | None = None
    """None: that of the agent loop."""
    top_p: float | None = None
    """As `temperature`."""
    places: Sequence[int] | None = None
    """Which of the n episodes are played; None: all."""

    @property
    def played(self) -> Sequence[int]:
        """Places of the episodes that are played."""
        return range(self.n) if self.places is None else self.places


class RolloutWorker:
    """Runs groups of episodes; at most `max_concurrency` episodes are in flight."""

    def __init__(self, loop: AgentLoop, *, max_concurrency: int = 256) -> None:
        if max_concurrency < 1:
            raise UserError(f"max_concurrency must be at least 1, got {max_concurrency}.")
        self.loop = loop
        self._max_concurrency = max_concurrency
        self._room = asyncio.Semaphore(max_concurrency)
        self._open: set[asyncio.Task[Trajectory] | None] = set()
        """Episodes that run or wait for room."""

    @property
    def room(self) -> int:
        """Episodes that would begin at once."""
        return max(self._max_concurrency - len(self._open), 0)

    async def run_groups(
        self, specs: Sequence[GroupSpec], on_trajectory: Callable[[Trajectory], None] | None = None
    ) -> list[Group]:
        """Play all groups; the result has their order. `on_trajectory` sees each trajectory as it ends."""
        with _collecting_less():
            async with asyncio.TaskGroup() as tasks:
                episodes = [
                    [tasks.create_task(self._episode(spec, k, on_trajectory)) for k in spec.played] for spec in specs
                ]
                for task in (task for group in episodes for task in group):
                    self._open.add(task)
                    task.add_done_callback(self._open.discard)
        return [
            Group(spec.group_id, [task.result() for task in group]) for spec, group in zip(specs, episodes, strict=True)
        ]

    async def _episode(self, spec: GroupSpec, k: int, on_trajectory: Callable[[Trajectory], None] | None) -> Trajectory:
        async with self._room:
            with playing(Episode(spec.group_id, k)):
                trajectory = await self._play(spec, k)
        trajectory.place = k
        self._open.discard(asyncio.current_task())  # now, so that `on_trajectory` sees the room
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    async def _play(self, spec: GroupSpec, k: int) -> Trajectory:
        trajectory_id = f"{spec.group_id}-{k}"
        try:
            env = spec.make_env()
        except UserError:
            raise
        except Exception as error:
            failed = Trajectory(trajectory_id=trajectory_id, group_id=spec.group_id, stop_reason=StopReason.ENV_ERROR)
            failed.count(FailureKind.ENV)
            failed.error = f"the environment cannot be made: {raised(error)}"
            return failed
        return await self.loop.run(
            env,
            trajectory_id=trajectory_id,
            group_id=spec.group_id,
            seed=spec.seed * spec.n + k,
            temperature=spec.temperature,
            top_p=spec.top_p,
        )


_before: list[tuple[int, int, int]] = []
"""The collector's thresholds before each of those who spare it now; the first ones are the process's own."""


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Spare the garbage collector what it would do in vain: an engine's libraries are a million objects, and growing
    episodes are all alive, so each collection walks much and frees nothing. What was there before is left out, and it
    runs less often; when the last one leaves, in whatever order, everything is as it was."""
    thresholds = gc.get_threshold()
    if not _before:
        gc.set_threshold(max(_COLLECTION_THRESHOLD, thresholds[0]) if thresholds[0] else 0, *thresholds[1:])
        gc.freeze()  # only relinks lists, as does unfreeze
    _before.append(thresholds)
    try:
        yield
    finally:
        if len(_before) > 1:
            _before.pop()
        else:
            gc.unfreeze()
            gc.set_threshold(*_before.pop())
