"""`RolloutWorker`: plays many episodes concurrently against one engine and returns them in groups."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentloop.engines.episodes import Episode, playing
from agentloop.episodes.loop import AgentLoop, close_env
from agentloop.errors import FailureKind, UserError, raised
from agentloop.process.group_scope import GroupScope
from agentloop.process.log_once import warn_once
from agentloop.types.limits import StopReason
from agentloop.types.requests import Group, RolloutRequest
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.envs.agent.program import AgentProgram
    from agentloop.envs.base import Env

_COLLECTION_THRESHOLD = 10_000
"""Number of new objects that trigger a collection of the youngest generation (Python's default: 700)."""


class RolloutWorker:
    """Plays groups of episodes; at most `max_concurrency` episodes are in flight.

    `make_env` creates a new environment for each episode of a request. Of the episodes that wait, the first
    `prepare_ahead` create theirs early and prepare it.
    """

    def __init__(
        self,
        loop: AgentLoop,
        make_env: Callable[[RolloutRequest], Env | AgentProgram],
        *,
        max_concurrency: int = 256,
        prepare_ahead: int = 0,
    ) -> None:
        if max_concurrency < 1:
            raise UserError(f"max_concurrency must be at least 1, got {max_concurrency}.")
        self.loop = loop
        self._make_env = make_env
        self._max_concurrency = max_concurrency
        self._slots = asyncio.Semaphore(max_concurrency)
        self._prepares = prepare_ahead > 0
        self._next = asyncio.Semaphore(max(prepare_ahead, 1))
        """Held by the episodes that get a slot next."""
        self._open: set[asyncio.Task[Trajectory] | None] = set()
        """Episodes that run or wait for a slot."""

    @property
    def room(self) -> int:
        """Number of further episodes that could start now."""
        return max(self._max_concurrency - len(self._open), 0)

    async def play(self, request: RolloutRequest, on_trajectory: Callable[[Trajectory], None] | None = None) -> Group:
        """Play the episodes of a request concurrently; `on_trajectory` gets each trajectory when it ends.

        Raises an `ExceptionGroup` with a `UserError` if no episode could ever work.
        """
        with _collecting_less():
            async with GroupScope(len(request.played)), asyncio.TaskGroup() as tasks:
                episodes = {k: tasks.create_task(self._episode(request, k, on_trajectory)) for k in request.played}
                for task in episodes.values():
                    self._open.add(task)
                    task.add_done_callback(self._open.discard)
        return Group(
            request,
            [
                _cancelled(request, k, on_trajectory) if task.cancelled() else task.result()
                for k, task in episodes.items()
            ],
        )

    async def _episode(
        self, request: RolloutRequest, k: int, on_trajectory: Callable[[Trajectory], None] | None
    ) -> Trajectory:
        with playing(Episode(request.group_id, k)):
            async with self._next:
                env = await self._prepared_at_slot(request)
            try:
                trajectory = await self._play(request, k, env)
            finally:
                self._slots.release()
        trajectory.place = k
        self._open.discard(asyncio.current_task())  # before `on_trajectory`, which may read `room`
        if on_trajectory is not None:
            on_trajectory(trajectory)
        return trajectory

    async def _prepared_at_slot(self, request: RolloutRequest) -> Env | AgentProgram | None:
        """Wait for a slot, and return the environment if it was prepared meanwhile."""
        env = None
        if self._prepares and self._slots.locked():
            with suppress(Exception, SystemExit):  # the episode tries again, and its trajectory has the error
                env = self._make_env(request)
        try:
            if env is not None:
                _prepare(env)
            await self._slots.acquire()
        except BaseException:
            if env is not None:
                await close_env(env, Trajectory(), self.loop.limits)  # an error would hide the cancellation
            raise
        return env

    async def _play(self, request: RolloutRequest, k: int, env: Env | AgentProgram | None) -> Trajectory:
        try:
            env = self._make_env(request) if env is None else env
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            return _failed(request, k, f"the environment cannot be created: {raised(error)}")
        trajectory = Trajectory(trajectory_id=request.trajectory_id(k), group_id=request.group_id, place=k)
        return await self.loop.play(env, trajectory, seed=request.seed_of(k), sampling=request.sampling)


def _prepare(env: Env | AgentProgram) -> None:
    """Let an environment begin early. An error is logged, because the episode can begin without it."""
    try:
        env.prepare()
    except (Exception, SystemExit) as error:  # user code
        problem = raised(error).removesuffix(".")
        warn_once(f"The method prepare of {type(env).__name__} raised {problem}. Its episodes begin without it.")


def _cancelled(request: RolloutRequest, k: int, on_trajectory: Callable[[Trajectory], None] | None) -> Trajectory:
    """Return the trajectory of an episode whose own code cancelled its task, as cancel scopes of anyio can."""
    trajectory = _failed(request, k, "a tool, the environment or the reward cancelled the task of its episode")
    if on_trajectory is not None:
        on_trajectory(trajectory)
    return trajectory


def _failed(request: RolloutRequest, k: int, error: str) -> Trajectory:
    """Return the trajectory of an episode that the environment ended."""
    trajectory = Trajectory(trajectory_id=request.trajectory_id(k), group_id=request.group_id, place=k)
    trajectory.stop_reason = StopReason.ENV_ERROR
    trajectory.count(FailureKind.ENV)
    trajectory.error = error
    return trajectory


_before: list[tuple[int, int, int]] = []
"""Stack of collector thresholds, one for each caller inside `_collecting_less`; the first are the process's own."""


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Run the garbage collector less often, and exclude the objects that exist already.

    The libraries of an engine hold a million objects, and objects of running episodes are alive: each collection would
    scan them all and free nothing. When the last caller leaves, in any order, the previous state is restored.
    """
    thresholds = gc.get_threshold()
    if not _before:
        gc.set_threshold(max(_COLLECTION_THRESHOLD, thresholds[0]) if thresholds[0] else 0, *thresholds[1:])
        gc.freeze()  # cheap: freeze and unfreeze only relink lists
    _before.append(thresholds)
    try:
        yield
    finally:
        if len(_before) > 1:
            _before.pop()
        else:
            gc.unfreeze()
            gc.set_threshold(*_before.pop())
