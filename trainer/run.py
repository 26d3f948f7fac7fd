"""The run loop, in one process:

sample tasks -> play groups -> advantages -> batch -> learner.step -> publish -> log -> checkpoint
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError
from agentloop.rollout import Group, GroupSpec
from agentloop.trainer import advantages
from agentloop.trainer import learner as learners
from agentloop.trainer.batch import TokenModels, TrainBatch, make_batch
from agentloop.trainer.checkpoints import CheckpointWriter, RunState
from agentloop.trainer.companions import ActorCritic, WithProcessReward
from agentloop.trainer.dynamic_sampling import StepGroups
from agentloop.trainer.episodes import Episodes, Row, make_engine, play, started
from agentloop.trainer.evaluation import evaluate
from agentloop.trainer.failures import check_failures
from agentloop.trainer.loggers import Logger, make_loggers
from agentloop.trainer.metrics import learner_metrics, rollout_metrics
from agentloop.trainer.model_folder import local_model
from agentloop.trainer.observers import Observer, Stage
from agentloop.trainer.resume import open_run
from agentloop.trainer.run_checks import check_trainable
from agentloop.trainer.run_config import RunConfig
from agentloop.trainer.run_folder import RunFolder
from agentloop.trainer.seeding import seed_everything, seed_of
from agentloop.trajectory import Trajectory

if TYPE_CHECKING:
    from agentloop.engines.base import Engine


async def train(config: RunConfig, folder: Path, observer: Observer | None = None) -> RunFolder:
    """Run, or go on with, the run in `folder` to its last step; the trained model is in the folder's `model/` then.

    Raises `UserError` for what the user can put right. What was written until then stays, and running again goes on
    from the last checkpoint.
    """
    check_trainable(config)
    model = local_model(config)
    episodes = Episodes.load(config, model)
    run_folder, checkpoint = open_run(config, folder)
    observer = observer or Observer()
    step = checkpoint[1].step if checkpoint else 0
    observer.on_start(config, folder, step)
    observer.on_stage(step, Stage.LOAD)
    async with started(make_engine(config, model), episodes) as engine:
        with closing(_make_learner(config, str(model))) as learner:
            run = Run(episodes, engine, learner, run_folder, observer)
            if checkpoint:
                await run.restore(*checkpoint)
            loggers = make_loggers(config, folder, done=step if checkpoint else -1)
            try:
                await run.to_the_end(loggers)
            finally:
                run.checkpoints.close()
                for logger in loggers:
                    logger.close()
    return run_folder


@dataclass(slots=True, frozen=True)
class _Played:
    """What the rollout of a step leaves for the learner and the log."""

    trained: list[Group]
    baselines: list[float | None] | None
    """The reward of each trained group's greedy episode."""
    metrics: dict[str, float]
    """Of all that was played."""


class Run:
    """A run between two steps: the learner, the engine with the same weights, the position in the dataset."""

    def __init__(
        self, episodes: Episodes, engine: Engine, learner: learners.Learner, folder: RunFolder, observer: Observer
    ) -> None:
        self.config = episodes.config
        self.episodes = episodes
        self.engine = engine
        self.learner = learner
        self.folder = folder
        self.observer = observer
        self.worker = episodes.worker(engine)
        self.sampler = TaskSampler(len(episodes.train), seed=self.config.run.seed, shuffle=self.config.data.shuffle)
        self.step = 0
        """Steps that are done."""
        self.policy_version = 0
        self.checkpoints = CheckpointWriter(folder.checkpoints, keep_last=self.config.run.keep_last)
        self._saved_step = 0
        self._seconds: dict[str, float] = {}

    async def restore(self, learner_folder: Path, state: RunState) -> None:
        """Be where a checkpoint was written."""
        self.sampler.load_state_dict(state.sampler)
        self.learner.load(learner_folder)
        self.step, self.policy_version = state.step, state.policy_version
        self._saved_step = self.step
        await self.learner.publish(self.engine, self.policy_version)

    async def to_the_end(self, loggers: Sequence[Logger]) -> None:
        """Make all steps that are left, then write the model."""
        settings = self.config.run
        if self.step == 0 and self.config.eval.every:
            self._log({"step": 0} | await self._evaluate() | self._take_seconds(), loggers)
        while self.step < settings.steps:
            started = time.perf_counter()
            try:
                played = await self._play()
            except UserError:
                self._save()  # the learner still is as the last step left it
                raise
            metrics = await self._learn(played)
            if self._is_evaluated():
                metrics |= await self._evaluate()
            self._log(metrics | self._take_seconds() | {"time/step": time.perf_counter() - started}, loggers)
            if self.step % settings.save_every == 0 or self.step == settings.steps:
                self._save()
        with self._stage(Stage.SAVE):
            self.learner.save_hf(self.folder.model)
            self.checkpoints.wait()

    async def _play(self) -> _Played:
        """The groups of the next step, written down; not too many of their episodes failed."""
        step = self.step + 1
        seed_everything(self.config.run.seed, step)
        before = self.sampler.state_dict()
        groups = StepGroups(self.config.algorithm)
        rows: list[Row] = []
        try:
            with self._stage(Stage.ROLLOUT, step):
                try:
                    while count := groups.num_to_play:
                        taken = [self.episodes.train[index] for index in self.sampler.take(count)]
                        groups.add(await play(self.worker, self._specs(taken, first=len(rows)), self._watch(step)))
                        rows.extend(taken)
                        check_failures(_all(groups.played), self.config, step=step, folder=str(self.folder.root))
                finally:
                    await self._write(f"step_{step:06d}", groups.played)
                baselines = await self._greedy_rewards(groups.trained, groups.played, rows)
        except UserError:
            self.sampler.load_state_dict(before)
            raise
        return _Played(groups.trained, baselines, rollout_metrics(groups.played) | groups.metrics())

    def _specs(self, rows: Sequence[Row], *, first: int) -> list[GroupSpec]:
        step, config = self.step + 1, self.config
        seed = seed_of(config.run.seed, step)
        return self.episodes.specs(rows, name=str(step), n=config.algorithm.group_size, seed=seed, first=first)

    async def _greedy_rewards(
        self, trained: Sequence[Group], played: Sequence[Group], rows: Sequence[Row]
    ) -> list[float | None] | None:
        """The reward of one greedy episode of each trained group's task, where the advantage asks for it."""
        if not advantages.get(self.config.algorithm.advantage).needs_greedy:
            return None
        row_of = {group.group_id: row for group, row in zip(played, rows, strict=True)}
        specs = self.episodes.specs(
            [row_of[group.group_id] for group in trained], name=f"{self.step + 1}-g", n=1, seed=0
        )
        groups = await play(self.episodes.worker(self.engine, temperature=0.0), specs)
        return [group.trajectories[0].reward for group in groups]

    async def _learn(self, played: _Played) -> dict[str, float]:
        """Train on the groups of the next step and give the engine the new weights: the step is done."""
        step = self.step + 1
        with self._stage(Stage.TRAIN, step):
            batch = await asyncio.to_thread(self._make_batch, played)
            learned = await asyncio.to_thread(self.learner.step, batch)
        with self._stage(Stage.PUBLISH, step):
            await self.learner.publish(self.engine, self.policy_version + 1)
        self.policy_version += 1
        self.step = step
        return (
            {"step": step, "policy_version": self.policy_version, "epoch": self.sampler.epoch}
            | played.metrics
            | {f"batch/{reason}": float(count) for reason, count in sorted(batch.dropped.items())}
            | learner_metrics(learned)
        )

    def _make_batch(self, played: _Played) -> TrainBatch:
        return make_batch(
            [group.trajectories for group in played.trained],
            self.config.algorithm,
            policy_version=self.policy_version,
            baselines=played.baselines,
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
        with self._stage(Stage.EVAL):
            metrics, groups = await evaluate(self.episodes, self.engine, on_trajectory=self._watch(self.step))
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

    def _save(self) -> None:
        """A checkpoint, where there is something new to save; it is written while the run goes on."""
        if self.step == self._saved_step:
            return
        with self._stage(Stage.SAVE):
            state = RunState(
                self.step, self.policy_version, self.sampler.state_dict(), self.config.model_dump(mode="json")
            )
            self.checkpoints.save(self.learner, state)
        self._saved_step = self.step

    @contextmanager
    def _stage(self, stage: Stage, step: int | None = None) -> Iterator[None]:
        self.observer.on_stage(self.step if step is None else step, stage)
        started = time.perf_counter()
        try:
            yield
        finally:
            key = f"time/{stage}"
            self._seconds[key] = self._seconds.get(key, 0.0) + time.perf_counter() - started

    def _take_seconds(self) -> dict[str, float]:
        """Seconds of each stage since they were taken last; a checkpoint's are part of the step after it."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _watch(self, step: int) -> Callable[[Trajectory], None]:
        return lambda trajectory: self.observer.on_trajectory(step, trajectory)


def _make_learner(config: RunConfig, model: str) -> learners.Learner:
    """The learner of the config for the model in a folder, with the second model that the advantage needs."""
    settings = config.learner.model_copy(update={"model": model})
    policy = learners.create(settings)
    advantage = advantages.get(config.algorithm.advantage)
    if advantage.value_targets is not None:
        critic = learners.create_critic(config.critic.as_learner(settings))
        return ActorCritic(policy, critic, warmup_steps=config.critic.warmup_steps)
    if advantage.needs_process_rewards:
        judge = learners.create(config.process_reward.as_learner(settings))
        return WithProcessReward(policy, judge, beta=config.process_reward.beta)
    return policy


def _all(groups: Sequence[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]
