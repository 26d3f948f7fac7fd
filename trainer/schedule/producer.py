"""`Producer`: keeps the workers as busy as the policy allows; finished groups go to the queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentloop.config.run import RunConfig
from agentloop.envs.mixture import MixedSampler
from agentloop.envs.sampler import TaskSampler
from agentloop.process.offloading import off_loop
from agentloop.process.seeding import seed_of
from agentloop.trainer.batch.outcomes import reason_without_gradient
from agentloop.trainer.schedule.group_completion import play_group
from agentloop.trainer.schedule.queue import LATE, QueueState, TrajectoryQueue, finished_groups
from agentloop.trainer.schedule.staleness_metrics import LengthBias
from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_request
from agentloop.types.requests import Group, RolloutRequest, Sampling

if TYPE_CHECKING:
    from agentloop.trainer.schedule.observers import Observer
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True, frozen=True)
class Selection:
    """Groups of a step, each list in the order of admission."""

    trained: list[Group]
    """Groups that the step trains on."""
    played: list[Group]
    """All finished groups that left the queue since the last selection, including the trained ones."""
    rounds: int
    """Number of rounds in which they started, if groups start in rounds."""
    fates: Counter[str]
    """Number of played groups by outcome: `trained`, or `dropped/<reason>`."""
    greedy: list[Trajectory] | None = None
    """A greedy episode for the task of each trained group, if the advantage needs it."""


class Producer:
    """Starts groups in the order of the sampler. `changed` reports that a group or the engine changed state."""

    def __init__(
        self, config: RunConfig, workers: Workers, sampler: TaskSampler | MixedSampler, observer: Observer
    ) -> None:
        self._algorithm = config.algorithm
        self._cut = config.staleness.cut
        self._steps = config.run.steps
        self._seed = config.run.seed
        self._sampling = Sampling(**config.sampling.model_dump(), is_trained=True)
        self._workers = workers
        self._sampler = sampler
        self._observer = observer
        self.queue = TrajectoryQueue(StalenessPolicy.of(config.staleness, config.algorithm.groups_per_step))
        self.bias = LengthBias()
        self._num_rounds = 0
        """Rounds since the last selection."""
        self._last_admission = 0.0
        self.tail_seconds = 0.0
        """Seconds from the last admission to the end of the last group."""
        self._starting: set[QueuedGroup] = set()
        """Groups not yet passed to the workers."""
        self._tasks: dict[QueuedGroup, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._is_held = False

    @property
    def may_admit(self) -> bool:
        """Whether a group may start now."""
        return self._num_to_admit() > 0

    def admit(self) -> None:
        """Start all groups that may start now."""
        count = self._num_to_admit()
        self._num_rounds += count > 0 and self.queue.policy.admits_in_rounds
        for _ in range(count):
            self._last_admission = asyncio.get_running_loop().time()
            self._start(self.queue.admit(self._next_request(), self._workers.policy_version))

    def select(self) -> Selection | None:
        """Return the groups of the next step, or None until they are finished; drop groups that become too old."""
        selected = self.queue.select(more_to_come=not self._is_exhausted(), engine_idles=self._engine_idles())
        if selected is None:
            return None
        for late in self.queue.late():
            self._drop(late, LATE)
        learner = self.queue.version - 1  # the selection has increased it
        for each in (episode for queued in selected for episode in queued.trajectories):
            self.bias.ended([each], is_trained=not self.queue.policy.is_masked(each, learner=learner))
        rounds, self._num_rounds = self._num_rounds, 0
        departed = [each for each in self.queue.take_departed() if each.group is not None]
        fates = Counter(each.fate for each in departed)
        return Selection(finished_groups(selected), finished_groups(departed), rounds, fates)

    async def changed(self) -> None:
        """Wait until a group ends. Raises the error of a group that failed."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Start no group inside the block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def restore(self, state: QueueState, version: int) -> None:
        """Restore a checkpoint whose weights the workers have; replay groups that were in flight."""
        for queued in self.queue.load(state, version=version):
            self._start(queued)

    async def close(self) -> None:
        """Abort groups in flight, which stay in the queue to be played again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _num_to_admit(self) -> int:
        queue, policy = self.queue, self.queue.policy
        num_admitted = len(queue.admitted)
        capacity = policy.capacity(num_admitted, learner=queue.version, engine=self._workers.policy_version)
        free = min(capacity, self._num_left())
        if free <= 0 or self._is_held or self._error is not None or self._is_exhausted():
            return 0
        if policy.admits_in_rounds:
            if queue.num_running:
                return 0
            return policy.round_size(free, self._oversampling)
        return min(free, -(-self._room() // self._num_episodes))

    def _room(self) -> int:
        """Return the number of further episodes that could start now."""
        return max(self._workers.room() - sum(each.request.n for each in self._starting), 0)

    def _num_left(self) -> int:
        """Return the number of groups still to be admitted until the end of the run."""
        policy = self.queue.policy
        return (self._steps - self.queue.version) * policy.groups_per_step - len(self.queue.admitted)

    def _engine_idles(self) -> bool:
        """Return whether there is room for a group that must not start before the next step."""
        begins_later = self.queue.policy.admits_in_rounds or self._num_left() > 0
        return begins_later and self._room() >= self._num_episodes

    def _is_exhausted(self) -> bool:
        """Return whether the step has reached its limit of groups, and so trains on the groups that it has."""
        sampling, queue = self._algorithm.dynamic_sampling, self.queue
        if sampling is None:
            return False
        if queue.policy.admits_in_rounds:
            return self._num_rounds >= sampling.max_rounds
        return len(queue.departed) >= sampling.max_rounds * queue.policy.groups_per_step

    def _next_request(self) -> RolloutRequest:
        step = self.queue.version + 1
        (row,) = self._sampler.take(1)
        seed = seed_of(self._seed, step)
        return make_request(
            str(step), self.queue.num_new, row, n=self._num_episodes, seed=seed, sampling=self._sampling
        )

    @property
    def _num_episodes(self) -> int:
        return self._algorithm.group_size + self._cut.extra_episodes

    @property
    def _oversampling(self) -> float:
        return self._algorithm.dynamic_sampling.oversampling if self._algorithm.dynamic_sampling else 1.0

    def _start(self, queued: QueuedGroup) -> None:
        queued.started = asyncio.get_running_loop().time()
        self._starting.add(queued)
        task = self._tasks[queued] = asyncio.create_task(self._play(queued))
        task.add_done_callback(lambda task: self._ended(queued, task))

    async def _play(self, queued: QueuedGroup) -> None:
        self._starting.discard(queued)
        group, dropped = await play_group(
            self._workers,
            queued.request,
            needed=self._algorithm.group_size,
            cut=self._cut,
            on_trajectory=self._episode_ended,
        )
        self.tail_seconds = asyncio.get_running_loop().time() - self._last_admission
        reason = await self._reason_to_drop(group)
        self.queue.finish(queued, group, dropped)
        queued.seconds = self._seconds(queued)
        self.bias.aborted(dropped.total(), queued.seconds)
        if reason is not None:
            self._drop(queued, reason)

    async def _reason_to_drop(self, group: Group) -> str | None:
        if self._algorithm.dynamic_sampling is None:
            return None
        size = sum(map(len, group.trajectories))
        return await off_loop(size, reason_without_gradient, group.trajectories, self._algorithm)

    def _drop(self, queued: QueuedGroup, reason: str) -> None:
        self.queue.drop(queued, reason)
        if queued.group is not None:
            self.bias.ended(queued.trajectories, is_trained=False)
        else:
            self._tasks[queued].cancel()
            self.bias.aborted(queued.request.n, self._seconds(queued))

    def _seconds(self, queued: QueuedGroup) -> float:
        return asyncio.get_running_loop().time() - queued.started

    def _episode_ended(self, trajectory: Trajectory) -> None:
        self._observer.on_trajectory(self.queue.version + 1, trajectory)
        if self.queue.policy.overlaps:
            self.admit()
            if self.queue.policy.when_late != "wait" and self._engine_idles():
                self._changed.set()  # the learner may stop waiting for stragglers

    def _ended(self, queued: QueuedGroup, task: asyncio.Task[None]) -> None:
        del self._tasks[queued]
        self._starting.discard(queued)
        if not task.cancelled():
            error = (
                task.exception()
            )  # retrieve it from every task, because asyncio logs errors that are never retrieved
            self._error = self._error or error
            if self.queue.policy.overlaps:
                self.admit()
        self._changed.set()
