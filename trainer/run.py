"""The run loop, in one process:

sample tasks -> play groups -> advantages -> batch -> learner.step -> publish -> log -> checkpoint
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError
from agentloop.rollout import Group
from agentloop.trainer import learner as learners
from agentloop.trainer.batch import make_batch
from agentloop.trainer.checkpoints import RunState, save_checkpoint
from agentloop.trainer.episodes import Episodes, make_engine, play, started
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
        learner = learners.create(config.learner.model_copy(update={"model": str(model)}))
        run = Run(episodes, engine, learner, run_folder, observer)
        if checkpoint:
            await run.restore(*checkpoint)
        loggers = make_loggers(config, folder, done=step if checkpoint else -1)
        try:
            await run.to_the_end(loggers)
        finally:
            for logger in loggers:
                logger.close()
    return run_folder


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
                groups = await self._play()
            except UserError:
                self._save()  # the learner still is as the last step left it
                raise
            metrics = await self._learn(groups)
            if self._is_evaluated():
                metrics |= await self._evaluate()
            self._log(metrics | self._take_seconds() | {"time/step": time.perf_counter() - started}, loggers)
            if self.step % settings.save_every == 0 or self.step == settings.steps:
                self._save()
        with self._stage(Stage.SAVE):
            self.learner.save_hf(self.folder.model)

    async def _play(self) -> list[Group]:
        """The groups of the next step, written down; not too many of their episodes failed."""
        algorithm, run = self.config.algorithm, self.config.run
        step = self.step + 1
        seed_everything(run.seed, step)
        before = self.sampler.state_dict()
        rows = [self.episodes.train[index] for index in self.sampler.take(algorithm.groups_per_step)]
        specs = self.episodes.specs(rows, name=str(step), n=algorithm.group_size, seed=seed_of(run.seed, step))
        try:
            with self._stage(Stage.ROLLOUT, step):
                groups = await play(self.worker, specs, self._watch(step))
                await self._write(f"step_{step:06d}", groups)
            check_failures(_all(groups), self.config, step=step, folder=str(self.folder.root))
        except UserError:
            self.sampler.load_state_dict(before)
            raise
        return groups

    async def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        """Train on the groups of the next step and give the engine the new weights: the step is done."""
        step = self.step + 1
        with self._stage(Stage.TRAIN, step):
            batch = make_batch([group.trajectories for group in groups], self.config.algorithm.advantage)
            learned = await asyncio.to_thread(self.learner.step, batch)
        with self._stage(Stage.PUBLISH, step):
            await self.learner.publish(self.engine, self.policy_version + 1)
        self.policy_version += 1
        self.step = step
        return (
            {"step": step, "policy_version": self.policy_version, "epoch": self.sampler.epoch}
            | rollout_metrics(groups)
            | {f"batch/{reason}": float(count) for reason, count in sorted(batch.dropped.items())}
            | learner_metrics(learned)
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
        """A checkpoint, where there is something new to save."""
        if self.step == self._saved_step:
            return
        with self._stage(Stage.SAVE):
            state = RunState(
                self.step, self.policy_version, self.sampler.state_dict(), self.config.model_dump(mode="json")
            )
            save_checkpoint(self.folder.checkpoints, self.learner, state, keep_last=self.config.run.keep_last)
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


def _all(groups: Sequence[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]
