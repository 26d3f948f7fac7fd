"""`Producer`: keeps the workers as busy as the policy allows; what they finish goes to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentloop.config.run import RunConfig
from agentloop.envs.sampler import TaskSampler
from agentloop.process.seeding import seed_of
from agentloop.trainer.schedule.failures import is_uninformative
from agentloop.trainer.schedule.group_completion import play_group
from agentloop.trainer.schedule.queue import EQUAL, LATE, QueueState, TrajectoryQueue
from agentloop.trainer.schedule.staleness_metrics import LengthBias
from agentloop.trainer.staleness.policy import QueuedGroup, StalenessPolicy
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_request
from agentloop.types.requests import RolloutRequest

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True, frozen=True)
class Selection:
    """What a step trains on, and all that left the queue for it."""

    trained: list[QueuedGroup]
    departed: list[QueuedGroup]
    """Since the selection before; what is trained is among them."""
    rounds: int
    """In which they began, where groups begin in rounds."""


class Producer:
    """Begins groups, in the order of the sampler. Whatever changes by itself is announced by `changed`."""

    def __init__(
        self,
        config: RunConfig,
        workers: Workers,
        sampler: TaskSampler,
        on_trajectory: Callable[[Trajectory], None],
    ) -> None:
        self._algorithm = config.algorithm
        self._cut = config.staleness.cut
        self._steps = config.run.steps
        self._seed = config.run.seed
        self._workers = workers
        self._sampler = sampler
        self._on_trajectory = on_trajectory
        self.queue = TrajectoryQueue(StalenessPolicy.of(config.staleness, config.algorithm.groups_per_step))
        self.bias = LengthBias()
        self.learner_version = 0
        """Of the weights that the next step trains; what was selected for a step counts as trained."""
        self._num_rounds = 0
        """Since the last selection."""
        self._last_admission = 0.0
        self.tail_seconds = 0.0
        """From the last admission to the end of the group that ended last."""
        self._starting: set[QueuedGroup] = set()
        """Ordered, and not known to the workers yet."""
        self._tasks: dict[QueuedGroup, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def may_admit(self) -> bool:
        """Something may begin now."""
        return self._num_to_admit() > 0

    def admit(self) -> None:
        """Begin what may begin now."""
        count = self._num_to_admit()
        self._num_rounds += count > 0 and self.queue.policy.admits_in_rounds
        for _ in range(count):
            self._last_admission = asyncio.get_running_loop().time()
            self._start(self.queue.admit(self._next_order(), self._workers.policy_version))

    def select(self) -> Selection | None:
        """The groups of the next step, None where they are not there yet. What gets too old by that is dropped."""
        selected = self.queue.select(
            self.learner_version, more_to_come=not self._is_exhausted(), engine_idles=self._engine_idles()
        )
        if selected is None:
            return None
        self.learner_version += 1
        for late in self.queue.late(self.learner_version):
            self._drop(late, LATE)
        self.bias.ended((t for each in selected for t in _trajectories(each)), is_trained=True)
        rounds, self._num_rounds = self._num_rounds, 0
        return Selection(selected, self.queue.begin_step(), rounds)

    async def changed(self) -> None:
        """Until a group has ended. Raises what went wrong in one."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def restore(self, state: QueueState) -> None:
        """Go on from a checkpoint, whose weights the workers have: what ran then begins anew."""
        for admitted in self.queue.load(state, version=self._workers.policy_version):
            self._start(admitted)

    async def close(self) -> None:
        """Abort what runs; in the queue it still is something to be played."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _num_to_admit(self) -> int:
        queue, policy = self.queue, self.queue.policy
        num_admitted = len(queue.admitted)
        capacity = policy.capacity(num_admitted, learner=self.learner_version, engine=self._workers.policy_version)
        free = min(capacity, self._num_left())
        if free <= 0 or self._error is not None or self._is_exhausted():
            return 0
        if policy.admits_in_rounds:
            if queue.num_running:
                return 0
            return policy.round_size(free, self._oversampling)
        return min(free, -(-self._room() // self._num_episodes))

    def _room(self) -> int:
        """Episodes that would begin at once."""
        return max(self._workers.room() - sum(each.order.n for each in self._starting), 0)

    def _num_left(self) -> int:
        """Groups to be admitted until the end of the run."""
        policy = self.queue.policy
        return (self._steps - self.learner_version) * policy.groups_per_step - len(self.queue.admitted)

    def _engine_idles(self) -> bool:
        """There is room for a group that may not begin before the next step: whatever may has begun."""
        begins_later = self.queue.policy.admits_in_rounds or self._num_left() > 0
        return begins_later and self._room() >= self._num_episodes

    def _is_exhausted(self) -> bool:
        """The step played as many groups as it may, and trains on what it has."""
        sampling, queue = self._algorithm.dynamic_sampling, self.queue
        if sampling is None:
            return False
        if queue.policy.admits_in_rounds:
            return self._num_rounds >= sampling.max_rounds
        return len(queue.departed) >= sampling.max_rounds * queue.policy.groups_per_step

    def _next_order(self) -> RolloutRequest:
        step = self.learner_version + 1
        (row,) = self._sampler.take(1)
        return make_request(str(step), self.queue.num_new, row, n=self._num_episodes, seed=seed_of(self._seed, step))

    @property
    def _num_episodes(self) -> int:
        return self._algorithm.group_size + self._cut.extra_episodes

    @property
    def _oversampling(self) -> float:
        return self._algorithm.dynamic_sampling.oversampling if self._algorithm.dynamic_sampling else 1.0

    def _start(self, admitted: QueuedGroup) -> None:
        admitted.started = asyncio.get_running_loop().time()
        self._starting.add(admitted)
        task = self._tasks[admitted] = asyncio.create_task(self._play(admitted))
        task.add_done_callback(lambda task: self._ended(admitted, task))

    async def _play(self, admitted: QueuedGroup) -> None:
        self._starting.discard(admitted)
        group, dropped = await play_group(
            self._workers,
            admitted.order,
            wanted=self._algorithm.group_size,
            cut=self._cut,
            on_trajectory=self._episode_ended,
        )
        self.tail_seconds = asyncio.get_running_loop().time() - self._last_admission
        self.queue.finish(admitted, group, dropped)
        self.bias.aborted(dropped.total(), self._seconds(admitted))
        if self._algorithm.dynamic_sampling is not None and is_uninformative(group):
            self._drop(admitted, EQUAL)

    def _drop(self, admitted: QueuedGroup, reason: str) -> None:
        self.queue.drop(admitted, reason)
        if admitted.group is not None:
            self.bias.ended(_trajectories(admitted), is_trained=False)
        else:
            self._tasks[admitted].cancel()
            self.bias.aborted(admitted.order.n, self._seconds(admitted))

    def _seconds(self, admitted: QueuedGroup) -> float:
        return asyncio.get_running_loop().time() - admitted.started

    def _episode_ended(self, trajectory: Trajectory) -> None:
        self._on_trajectory(trajectory)
        if self.queue.policy.overlaps:
            self.admit()
            if self.queue.policy.when_late != "wait" and self._engine_idles():
                self._changed.set()  # the learner may not want to wait any longer

    def _ended(self, admitted: QueuedGroup, task: asyncio.Task[None]) -> None:
        del self._tasks[admitted]
        self._starting.discard(admitted)
        if not task.cancelled():
            self._error = self._error or task.exception()
            if self.queue.policy.overlaps:
                self.admit()
        self._changed.set()


def _trajectories(admitted: QueuedGroup) -> list[Trajectory]:
    return admitted.group.trajectories if admitted.group else []
