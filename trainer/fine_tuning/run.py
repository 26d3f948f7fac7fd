"""`FineTuningRun`: the steps and evaluations of a run on given answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.envs.sampler import TaskSampler
from agentloop.episodes.setup import RolloutSetup
from agentloop.process.seeding import seed_everything
from agentloop.process.threads import FILES, LEARNER
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.fine_tuning.examples import Examples
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.losses.preference import DpoOptions, log_ratios, pair_metrics
from agentloop.trainer.run.evaluation import evaluate
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.loggers import Logger
from agentloop.trainer.run.metrics.rollout import learner_metrics
from agentloop.trainer.run.steps import StepLoop
from agentloop.trainer.schedule.gpu_time_sharing import GpuTimeSharing
from agentloop.trainer.schedule.observers import Stage, StageTimer
from agentloop.trainer.workers.protocol import Workers

_SHOWN = 16
"""Number of conversations of the first step to write, so that the viewer can show which tokens are trained."""


@dataclass(slots=True, frozen=True)
class Player:
    """Plays the held-out tasks of a run config with the weights in training."""

    setup: RolloutSetup
    workers: Workers


class FineTuningRun(StepLoop):
    """A run on conversations (loss `sft`) or preference pairs (loss `dpo`)."""

    def __init__(
        self,
        config: FineTuningConfig,
        train: Examples,
        held_out: Examples | None,
        learner: Learner,
        folder: RunFolder,
        *,
        timer: StageTimer,
        loggers: Sequence[Logger] = (),
        player: Player | None = None,
    ) -> None:
        """Create the run. `player` plays episodes at each evaluation."""
        sampler = TaskSampler(len(train), seed=config.run.seed, shuffle=config.data.shuffle)
        every = config.eval.every
        super().__init__(config, learner, sampler, folder, timer=timer, loggers=loggers, evaluates_every=every)
        self.config = config
        self.train = train
        self.held_out = held_out
        self.player = player
        self.gpus: GpuTimeSharing | None = None
        if player is not None:
            sleeps = player.setup.config.placement.sleeps
            self.gpus = GpuTimeSharing(player.workers, learner, self.timer, alternate=sleeps)
        self._state = self._state_now()

    async def _to_learner(self) -> None:
        if self.gpus is not None:
            await self.gpus.to_learner()

    async def _step(self) -> dict[str, float]:
        self.timer.step = self.version + 1
        seed_everything(self.config.run.seed, self.timer.step)
        await self._to_learner()
        with self.timer.stage(Stage.TRAIN):
            batch, indices = await LEARNER.run(self._next_batch)
            if self.version == 0:
                shown = [stream for index in indices[:_SHOWN] for stream in self.train.trajectories(index)]
                await FILES.run(self.folder.write_trajectories, f"step_{self.timer.step:06d}", shown)
            learned = await LEARNER.run(self.learner.step, batch)
        self.version += 1
        self._state = self._state_now()
        metrics: dict[str, float] = {"step": self.version, "epoch": self.sampler.epoch}
        metrics |= {f"batch/{reason}": float(count) for reason, count in sorted(batch.dropped.items())}
        return metrics | learner_metrics(learned)

    def _next_batch(self) -> tuple[TrainBatch, list[int]]:
        """Return the next batch and its rows. Rows of which none can be trained are skipped, and count as dropped."""
        dropped: Counter[str] = Counter()
        while True:  # Examples.load has found a row that can be trained
            indices = self.sampler.take(self.config.batch_size)
            batch = self.train.batch(indices)
            dropped.update(batch.dropped)
            if len(batch):
                return replace(batch, dropped=dict(dropped)), indices

    async def _evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if self.held_out is not None:
            await self._to_learner()
            with self.timer.stage(Stage.EVAL):
                metrics |= await LEARNER.run(self._held_out_loss, self.held_out)
        if self.player is not None:
            metrics |= await self._play(self.player)
        return metrics

    def _held_out_loss(self, examples: Examples) -> dict[str, float]:
        """Return the mean loss of the held-out conversations, per trained token or per pair."""
        scores: list[NDArray[np.float32]] = []
        ratios: list[NDArray[np.float64]] = []
        for start in range(0, len(examples), self.config.batch_size):
            samples = examples.batch(range(start, min(start + self.config.batch_size, len(examples)))).samples
            if not samples:
                continue
            scores += (found := self.learner.logprobs(samples))
            if examples.pairs:
                ratios.append(log_ratios(found, self.learner.reference_logprobs(samples)))
        if not examples.pairs:
            return {"eval/loss": -float(np.concatenate(scores).mean(dtype=np.float64))}
        options = DpoOptions(**self.config.learner.loss_options)
        found_metrics = pair_metrics(np.concatenate(ratios), [True, False] * (len(scores) // 2), options)
        return {f"eval/{name}": value for name, value in found_metrics.items()}

    async def _play(self, player: Player) -> dict[str, float]:
        assert self.gpus is not None
        await self._to_learner()
        with self.timer.stage(Stage.PUBLISH):
            await self.learner.publish(player.workers, self.version)
        await self.gpus.to_engines()
        with self.timer.stage(Stage.EVAL):
            on_trajectory = partial(self.observer.on_trajectory, self.version)
            metrics, groups = await evaluate(player.setup, player.workers, on_trajectory=on_trajectory)
            played = [trajectory for group in groups for trajectory in group.trajectories]
            await FILES.run(self.folder.write_trajectories, f"eval_{self.version:06d}", played)
        return metrics
