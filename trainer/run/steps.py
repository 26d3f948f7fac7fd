"""The step loop that all training runs share: steps, evaluations, the log, checkpoints and the final model.

A run is opened in its folder (`open_training`), and runs the remaining steps after its last checkpoint
(`StepLoop.complete`). Subclasses define a step and an evaluation.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentloop.config.run import TrainingConfig
from agentloop.envs.mixture import MixedSampler
from agentloop.envs.sampler import TaskSampler
from agentloop.process.full_disk import naming_full_disk
from agentloop.process.threads import FILES, LEARNER
from agentloop.trainer.cluster.session import removing_sessions
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.checkpoints import CheckpointWriter, RunState
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.lock import locked
from agentloop.trainer.run.loggers import Logger, open_loggers
from agentloop.trainer.run.resume import open_run
from agentloop.trainer.schedule.observers import Observer, Stage, StageTimer


@dataclass(slots=True, frozen=True)
class OpenedTraining:
    """The folder of a run while this process holds its lock."""

    folder: RunFolder
    checkpoint: tuple[Path, RunState] | None
    """The learner's folder and the state of the last checkpoint; None if the run starts from the beginning."""
    loggers: Sequence[Logger]
    timer: StageTimer


@asynccontextmanager
async def open_training(config: TrainingConfig, folder: Path, observer: Observer) -> AsyncIterator[OpenedTraining]:
    """Create the folder of a run, or roll it back to its last checkpoint; hold its lock and open its loggers.

    Raises `UserError` if the folder has another run, or if another process uses it.
    """
    with naming_full_disk(folder), removing_sessions():
        RunFolder(folder).make()
        with locked(folder):
            run_folder, checkpoint = open_run(config, folder)
            step = checkpoint[1].step if checkpoint else 0
            observer.on_start(config, folder, step)
            timer = StageTimer(observer, step)
            with open_loggers(config, folder, done=step if checkpoint else -1) as loggers:
                try:
                    yield OpenedTraining(run_folder, checkpoint, loggers, timer)
                finally:
                    await asyncio.gather(LEARNER.idle(), FILES.idle())  # after Ctrl-C during a step


class StepLoop(ABC):
    """A training run: its parts and one counter.

    `version` is the number of completed steps, which is the policy version of the learner's weights.
    """

    def __init__(
        self,
        config: TrainingConfig,
        learner: Learner,
        sampler: TaskSampler | MixedSampler,
        folder: RunFolder,
        *,
        timer: StageTimer,
        loggers: Sequence[Logger] = (),
        evaluates_every: int = 0,
    ) -> None:
        self.settings = config.run
        self.learner = learner
        self.sampler = sampler
        self.folder = folder
        self.observer = timer.observer
        self.loggers = loggers
        self.version = 0
        self.timer = timer
        self.checkpoints = CheckpointWriter(folder.checkpoints, keep_last=config.run.keep_last)
        self._stored_config = config.model_dump(mode="json")
        self._evaluates_every = evaluates_every
        self._state: RunState
        """State after the last step, for the next checkpoint; a subclass sets it."""
        self._saved_version = 0

    @abstractmethod
    async def _step(self) -> dict[str, float]:
        """Run a step, which adds 1 to `version` and sets the state; return its metrics."""

    @abstractmethod
    async def _evaluate(self) -> dict[str, float]:
        """Evaluate the weights of this version; return the metrics."""

    async def _to_learner(self) -> None:  # noqa: B027  most runs share no GPU
        """Make room for the learner on the GPUs that it shares."""

    def _take_metrics(self) -> dict[str, float]:
        """Return metrics since the last call."""
        return self.timer.take_seconds()

    async def complete(self, checkpoint: tuple[Path, RunState] | None) -> None:
        """Run all remaining steps after a checkpoint, or all steps of the run."""
        if checkpoint is not None:
            await self.restore(*checkpoint)
        try:
            await self.to_the_end()
        finally:
            await self.close()

    async def restore(self, learner_folder: Path, state: RunState) -> None:
        """Restore a checkpoint."""
        self.sampler.load_state_dict(state.sampler)
        await LEARNER.run(self.learner.load, learner_folder)
        self.version = self.timer.step = self._saved_version = state.step
        self._state = self._state_now()

    async def to_the_end(self) -> None:
        """Run all remaining steps, then write the model."""
        if self.version == 0 and self._evaluates_every:
            await self._log({"step": 0} | await self._evaluate())
        started = now()
        while self.version < self.settings.steps:
            metrics = await self._step()
            if self._is_evaluated():
                metrics |= await self._evaluate()
            # A step begins where the last one ended, so that the steps add up to the time of the run.
            ended = now()
            await self._log(metrics | {"time/step": ended - started})
            started = ended
            await self._save_if_due()
        await self._write_model()

    async def close(self) -> None:
        """Finish a checkpoint that is being written."""
        await self.checkpoints.close()

    def _is_evaluated(self) -> bool:
        every = self._evaluates_every
        return bool(every) and (self.version % every == 0 or self.version == self.settings.steps)

    async def _log(self, metrics: dict[str, float]) -> None:
        metrics |= self._take_metrics()
        await FILES.run(self._write_metrics, metrics)
        self.observer.on_step(self.version, metrics)

    def _write_metrics(self, metrics: Mapping[str, float]) -> None:
        self.folder.append_metrics(metrics)
        for logger in self.loggers:
            logger.log(self.version, metrics)

    async def _save_if_due(self) -> None:
        if self.version % self.settings.save_every == 0 or self.version == self.settings.steps:
            await self._save()

    async def _save(self) -> None:
        """Start a checkpoint of the last step, unless it has one."""
        if self.version == self._saved_version:
            return
        await self._to_learner()
        with self.timer.stage(Stage.SAVE):
            await self.checkpoints.save(self.learner, self._state)
        self._saved_version = self.version

    async def _write_model(self) -> None:
        await self._to_learner()
        with self.timer.stage(Stage.SAVE):
            await LEARNER.run(self.learner.save_hf, self.folder.model)
            await self.checkpoints.wait()

    def _state_now(self) -> RunState:
        return RunState(self.version, self.sampler.state_dict(), self._stored_config)


def now() -> float:
    """Return the time of the event loop in seconds; simulations replace its clock."""
    return asyncio.get_running_loop().time()
