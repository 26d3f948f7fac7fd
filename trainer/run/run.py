"""The run loop:

sample tasks -> play groups -> queue -> advantages -> batch -> learner.step -> publish -> log -> checkpoint

There is one loop for all modes of `agentloop.trainer.staleness`: the policy says when groups begin, when a step may
train and when its weights are published. Where it bounds staleness by 0 nothing overlaps: the synchronous loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.config.run import RunConfig
from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError
from agentloop.process.seeding import seed_everything
from agentloop.rollout.setup import RolloutSetup
from agentloop.trainer import advantages
from agentloop.trainer.batch.train_batch import TokenModels, TrainBatch, make_batch
from agentloop.trainer.learner.auxiliary_model import ActorCritic, WithProcessReward
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.checkpoints import CheckpointWriter, RunState
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.evaluation import evaluate
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.learners import make_learner
from agentloop.trainer.run.loggers import Logger, open_loggers
from agentloop.trainer.run.metrics import learner_metrics, rollout_metrics
from agentloop.trainer.run.model_folder import local_model
from agentloop.trainer.run.resume import open_run
from agentloop.trainer.run.sampling_metrics import sampling_metrics
from agentloop.trainer.schedule.failures import check_failures
from agentloop.trainer.schedule.gpu_time_sharing import GpuTimeSharing
from agentloop.trainer.schedule.observers import Observer, Stage
from agentloop.trainer.schedule.producer import Producer, Selection
from agentloop.trainer.schedule.staleness_metrics import queue_metrics, token_staleness
from agentloop.trainer.staleness.policy import QueuedGroup
from agentloop.trainer.workers.factory import make_workers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.trainer.workers.protocol import Workers


async def train(config: RunConfig, folder: Path, observer: Observer | None = None) -> RunFolder:
    """Run, or go on with, the run in `folder` to its last step; the trained model is in the folder's `model/` then.

    Raises `UserError` for what the user can put right. What was written until then stays, and running again goes on
    from the last checkpoint.
    """
    check_trainable(config)
    model = local_model(config)
    episodes = RolloutSetup.load(config, model)
    config = episodes.config
    run_folder, checkpoint = open_run(config, folder)
    observer = observer or Observer()
    step = checkpoint[1].step if checkpoint else 0
    observer.on_start(config, folder, step)
    observer.on_stage(step, Stage.LOAD)
    with open_loggers(config, folder, done=step if checkpoint else -1) as loggers:
        workers = make_workers(config, model, episodes, folder)
        try:
            await workers.start()
            if config.placement.sleeps:
                await workers.sleep()  # the learner is loaded in its turn
            with closing(make_learner(config, str(model), folder, workers.reservation)) as learner:
                run = Run(episodes, workers, learner, run_folder, observer)
                if checkpoint:
                    await run.restore(*checkpoint)
                try:
                    await run.to_the_end(loggers)
                finally:
                    await run.close()
        finally:
            await workers.close()
    return run_folder


@dataclass(slots=True, frozen=True)
class _Played:
    """What the rollout of a step leaves for the learner and the log."""

    trained: list[Group]
    baselines: list[float | None] | None
    """The reward of each trained group's greedy episode."""
    metrics: dict[str, float]
    """Of all groups that left the queue."""


class Run:
    """A run between two steps: the learner, its workers, what they have played, the position in the dataset."""

    def __init__(
        self, episodes: RolloutSetup, workers: Workers, learner: Learner, folder: RunFolder, observer: Observer
    ) -> None:
        self.config = episodes.config
        self.episodes = episodes
        self.workers = workers
        self.learner = learner
        self.folder = folder
        self.observer = observer
        self.sampler = TaskSampler(len(episodes.train), seed=self.config.run.seed, shuffle=self.config.data.shuffle)
        self.producer = Producer(
            self.config, workers, self.sampler, lambda trajectory: observer.on_trajectory(self.step + 1, trajectory)
        )
        self.queue = self.producer.queue
        self.policy = self.queue.policy
        self.step = 0
        """Steps that are done."""
        self.policy_version = 0
        """Of the learner's weights; those of the workers may be behind."""
        self.checkpoints = CheckpointWriter(folder.checkpoints, keep_last=self.config.run.keep_last)
        self._saved_step = 0
        self._state = self._state_now()
        """After the last step."""
        self._step_seconds = 0.0
        """Of the last training step."""
        self._seconds: dict[str, float] = {}
        self.turns = GpuTimeSharing(workers, learner, alternate=self.config.placement.sleeps, stage=self._stage)

    async def restore(self, learner_folder: Path, state: RunState) -> None:
        """Be where a checkpoint was written; groups that ran then begin anew."""
        self.sampler.load_state_dict(state.sampler)
        self.learner.load(learner_folder)
        self.step, self.policy_version = state.step, state.policy_version
        self._saved_step = self.step
        await self.learner.publish(self.workers, self.policy_version)
        self.producer.learner_version = self.policy_version
        self.producer.restore(state.queue)
        self._state = self._state_now()

    async def to_the_end(self, loggers: Sequence[Logger]) -> None:
        """Make all steps that are left, then write the model."""
        settings = self.config.run
        if self.step == 0 and self.config.eval.every:
            self._log({"step": 0} | await self._evaluate() | self._take_seconds(), loggers)
        while self.step < settings.steps:
            started = _now()
            try:
                played = await self._play()
            except UserError:
                # The learner still is as the last step left it; groups that failed are played again.
                self._state = replace(self._state, queue=self._state.queue.without_failures())
                await self._save()
                raise
            metrics = await self._learn(played)
            if self._is_evaluated():
                metrics |= await self._evaluate()
            metrics |= self.turns.take_metrics()
            self._log(metrics | self._take_seconds() | {"time/step": _now() - started}, loggers)
            if self.step % settings.save_every == 0 or self.step == settings.steps:
                await self._save()
        await self.turns.to_learner()
        with self._stage(Stage.SAVE):
            self.learner.save_hf(self.folder.model)
            self.checkpoints.wait()

    async def close(self) -> None:
        """Abort the episodes that still run, and finish the checkpoint that is being written."""
        await self.producer.close()
        self.checkpoints.close()

    async def _play(self) -> _Played:
        """The groups of the next step, written down; not too many episodes failed."""
        step = self.step + 1
        seed_everything(self.config.run.seed, step)
        await self._let_engines_play()
        with self._stage(Stage.ROLLOUT, step):
            try:
                selection = await self._select()
            except UserError:
                await self._write(f"step_{step:06d}", _groups([*self.queue.departed, *self.queue.admitted]))
                raise
            played = _groups(selection.departed)
            await self._write(f"step_{step:06d}", played)
            baselines = await self._greedy_rewards(selection.trained)
        metrics = rollout_metrics(played)
        if self.config.algorithm.dynamic_sampling is not None:
            metrics |= sampling_metrics(selection)
        return _Played(_groups(selection.trained), baselines, metrics)

    async def _select(self) -> Selection:
        """Wait for the groups of the next step, and keep the workers busy meanwhile."""
        while True:
            await self._publish()
            await self._let_engines_play()
            self.producer.admit()
            if not self.queue.num_running:
                self._check_failures([])
            # Where engines sleep for a step, all that runs ends before.
            waits = self.turns.alternate and self.queue.num_running > 0
            if not waits and (selection := self.producer.select()) is not None:
                self._check_failures(selection.departed)
                return selection
            await self.producer.changed()

    async def _let_engines_play(self) -> None:
        """Where something is to be played: the next step may have all its groups already."""
        if self.queue.num_running or self.producer.may_admit:
            await self.turns.to_engines()

    def _check_failures(self, departed: Sequence[QueuedGroup]) -> None:
        played = _groups([*departed, *self.queue.departed, *self.queue.admitted])
        check_failures(_all(played), self.config, step=self.step + 1, folder=str(self.folder.root))

    async def _greedy_rewards(self, selected: Sequence[QueuedGroup]) -> list[float | None] | None:
        """The reward of one greedy episode of each trained group's task, where the advantage asks for it."""
        if not advantages.get(self.config.algorithm.advantage).needs_greedy:
            return None
        rows = [each.order.row for each in selected]
        orders = make_requests(f"{self.step + 1}-g", rows, n=1, seed=0, temperature=0.0)
        await self.turns.to_engines()
        groups = await play_all(self.workers, orders)
        return [group.trajectories[0].reward for group in groups]

    async def _learn(self, played: _Played) -> dict[str, float]:
        """Train on the groups of the next step: then it is done, and its weights are published as the policy says."""
        step = self.step + 1
        await self.turns.to_learner()
        with self._stage(Stage.TRAIN, step):
            batch = await asyncio.to_thread(self._make_batch, played.trained, played.baselines)
            stale = token_staleness(batch, version=self.policy_version)
            assert stale.get("staleness/max", 0.0) <= self.policy.max_staleness, "a token is too old"
            started = _now()
            learned = await asyncio.to_thread(self.learner.step, batch)
            self._step_seconds = _now() - started
        self.policy_version += 1
        self.step = step
        await self._publish()
        self._state = self._state_now()
        metrics = {"step": step, "policy_version": self.policy_version, "epoch": self.sampler.epoch} | played.metrics
        if self.policy.overlaps:
            if not self.turns.alternate:
                self.producer.admit()
            metrics |= stale | queue_metrics(self.queue) | self.producer.bias.metrics(self.queue, _now())
        return (
            metrics
            | {f"batch/{reason}": float(count) for reason, count in sorted(batch.dropped.items())}
            | self.workers.metrics()
            | learner_metrics(learned)
        )

    async def _publish(self) -> None:
        """Give the workers the learner's weights, where they have older ones and the policy lets them."""
        if self.workers.policy_version == self.policy_version:
            return
        seconds = {"tail_seconds": self.producer.tail_seconds, "step_seconds": self._step_seconds}
        if self.policy.may_swap(self.queue.admitted, **seconds):
            await self.turns.to_learner()
            with self._stage(Stage.PUBLISH):
                await self.learner.publish(self.workers, self.policy_version)

    def _make_batch(self, groups: Sequence[Group], baselines: Sequence[float | None] | None = None) -> TrainBatch:
        return make_batch(
            [group.trajectories for group in groups],
            self.config.algorithm,
            policy_version=self.policy_version,
            oldest_version=self.policy_version - self.policy.max_staleness,
            baselines=baselines,
            models=TokenModels(
                reference=self.learner.reference_logprobs,
                critic=self.learner.values if isinstance(self.learner, ActorCritic) else None,
                process=self.learner.process_rewards if isinstance(self.learner, WithProcessReward) else None,
            ),
        )

    def _is_evaluated(self) -> bool:
        every = self.config.eval.every
        return bool(every) and (self.step % every == 0 or self.step == self.config.run.steps)

    async def _evaluate(self) -> dict[str, float]:
        await self.turns.to_engines()
        with self._stage(Stage.EVAL):
            metrics, groups = await evaluate(self.episodes, self.workers, on_trajectory=self._watch(self.step))
            await self._write(f"eval_{self.step:06d}", groups)
        return metrics

    async def _write(self, name: str, groups: Sequence[Group]) -> None:
        trajectories = _all(groups)[: self.config.run.save_trajectories]
        await asyncio.to_thread(self.folder.write_trajectories, name, trajectories)

    def _log(self, metrics: dict[str, float], loggers: Sequence[Logger]) -> None:
        self.folder.append_metrics(metrics)
        for logger in loggers:
            logger.log(self.step, metrics)
        self.observer.on_step(self.step, metrics)

    async def _save(self) -> None:
        """A checkpoint, where there is something new to save; it is written while the run goes on."""
        if self.step == self._saved_step:
            return
        await self.turns.to_learner()
        with self._stage(Stage.SAVE):
            self.checkpoints.save(self.learner, self._state)
        self._saved_step = self.step

    def _state_now(self) -> RunState:
        return RunState(
            self.step,
            self.policy_version,
            self.sampler.state_dict(),
            self.config.model_dump(mode="json"),
            self.queue.state(),
        )

    @contextmanager
    def _stage(self, stage: Stage, step: int | None = None) -> Iterator[None]:
        self.observer.on_stage(self.step if step is None else step, stage)
        started = _now()
        try:
            yield
        finally:
            key = f"time/{stage}"
            self._seconds[key] = self._seconds.get(key, 0.0) + _now() - started

    def _take_seconds(self) -> dict[str, float]:
        """Seconds of each stage since they were taken last; a checkpoint's are part of the step after it."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _watch(self, step: int) -> Callable[[Trajectory], None]:
        return lambda trajectory: self.observer.on_trajectory(step, trajectory)


def _groups(admitted: Sequence[QueuedGroup]) -> list[Group]:
    """Those that are finished, in the order of their admission."""
    return [each.group for each in sorted(admitted, key=lambda each: each.number) if each.group is not None]


def _all(groups: Sequence[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _now() -> float:
    """Seconds on the clock of the event loop, which is the wall's but in simulations."""
    return asyncio.get_running_loop().time()
