"""The run loop: sample -> play -> train -> publish -> log -> checkpoint.

    dataset rows --> TaskSampler --> Producer --requests--> Workers (agent loops around engines)
                                        |                      ^                  |
                                     admits                 weights             groups
                                        |                      |                  v
                     StalenessPolicy ---+--- may swap ---------+    <-- queued in TrajectoryQueue
                                        |                      |                  |
                                     selects                publish            selects
                                        |                      |                  v
                                        +---------------- Learner.step <---- make_batch

    component          waits for
    Producer           room in the workers, and capacity of the policy: admitted groups can be trained in time
    Run                groups that the policy selects for the next step (`Producer.changed`)
    engines            nothing, unless the policy swaps weights between episodes, or the learner uses their GPUs
    checkpoint         the end of a step; learner, sampler and queue are then written in the background

One loop serves all modes of `agentloop.trainer.staleness`. The policy decides when groups start, when a step may train,
and when its weights are published. With a bound of 0 nothing overlaps: this is the synchronous loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from agentloop.envs.mixture import MixedSampler
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError
from agentloop.process.seeding import seed_everything
from agentloop.process.threads import FILES, LEARNER
from agentloop.trainer import advantages
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.batch.outcomes import ScoreFn, TokenModels
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.auxiliary_model import ActorCritic, WithProcessReward
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.checkpoints import RunState
from agentloop.trainer.run.evaluation import evaluate
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.loggers import Logger
from agentloop.trainer.run.metrics.rollout import learner_metrics, rollout_metrics
from agentloop.trainer.run.metrics.sampling import sampling_metrics
from agentloop.trainer.run.metrics.sources import source_metrics
from agentloop.trainer.run.steps import StepLoop, now
from agentloop.trainer.schedule.engine_check import check_engine
from agentloop.trainer.schedule.failures import check_failures
from agentloop.trainer.schedule.gpu_time_sharing import GpuTimeSharing
from agentloop.trainer.schedule.observers import Stage, StageTimer
from agentloop.trainer.schedule.producer import Producer, Selection
from agentloop.trainer.schedule.queue import finished_groups
from agentloop.trainer.schedule.staleness_metrics import queue_metrics, token_staleness
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory


class Run(StepLoop):
    """A reinforcement learning run. Workers may have older weights than the learner."""

    def __init__(
        self,
        setup: RolloutSetup,
        workers: Workers,
        learner: Learner,
        folder: RunFolder,
        *,
        timer: StageTimer,
        loggers: Sequence[Logger] = (),
        teacher: ScoreFn | None = None,
    ) -> None:
        """Create the run. `teacher` scores sampled tokens for distillation; None: the reference model does."""
        self.config = config = setup.config
        sampler, every = setup.sampler(), config.eval.every
        super().__init__(config, learner, sampler, folder, timer=timer, loggers=loggers, evaluates_every=every)
        self.setup = setup
        self.workers = workers
        self.producer = Producer(config, workers, sampler, self.observer)
        self.queue = self.producer.queue
        self.policy = self.queue.policy
        self.gpus = GpuTimeSharing(workers, learner, self.timer, alternate=config.placement.sleeps)
        self._teacher = teacher or learner.reference_logprobs
        self._state = self._state_now()
        self._engine_checked = False
        """Whether engine and learner were compared since this process started."""
        self._train_seconds = 0.0
        """Duration of the last training step in seconds."""

    async def restore(self, learner_folder: Path, state: RunState) -> None:
        """Restore a checkpoint, and replay groups that were in flight when it was written."""
        await super().restore(learner_folder, state)
        await self.learner.publish(self.workers, self.version)
        self.producer.bias.load_state_dict(state.bias)
        self.producer.restore(state.queue, self.version)
        self._state = self._state_now()

    async def close(self) -> None:
        """Abort episodes in flight, and finish a checkpoint that is being written."""
        await self.producer.close()
        await super().close()

    async def _step(self) -> dict[str, float]:
        selection = await self._play()
        metrics = await self._train(selection)
        await self._publish()
        return metrics | self._finish_step()

    async def _to_learner(self) -> None:
        await self.gpus.to_learner()

    def _take_metrics(self) -> dict[str, float]:
        return self.gpus.take_metrics() | super()._take_metrics()

    # Sample and play

    async def _play(self) -> Selection:
        """Return the groups of the next step. If a `UserError` stops the run, save a checkpoint first."""
        try:
            return await self._play_groups()
        except UserError:
            await self._save()  # the learner has the state after the last step
            raise

    async def _play_groups(self) -> Selection:
        self.timer.step = self.version + 1
        seed_everything(self.config.run.seed, self.timer.step)
        await self._let_engines_play()
        with self.timer.stage(Stage.ROLLOUT):
            try:
                selection = await self._select()
            except UserError:
                await self._write(f"step_{self.timer.step:06d}", self._finished())
                raise
            await self._write(f"step_{self.timer.step:06d}", selection.played)
            return replace(selection, greedy=await self._greedy_episodes(selection.trained))

    async def _select(self) -> Selection:
        """Keep the workers busy until the policy selects the groups of the next step."""
        while True:
            await self._publish()
            await self._let_engines_play()
            self.producer.admit()
            if not self.queue.num_running:
                self._check_failures(self._finished())
            # Engines finish their episodes before they sleep for a step.
            waits = self.gpus.alternate and self.queue.num_running > 0
            if not waits and (selection := self.producer.select()) is not None:
                self._check_failures([*selection.played, *self._finished()])
                return selection
            await self.producer.changed()

    async def _let_engines_play(self) -> None:
        """Wake the engines unless all groups of the next step are finished already."""
        if self.queue.num_running or self.producer.may_admit:
            await self.gpus.to_engines()

    def _finished(self) -> list[Group]:
        return finished_groups([*self.queue.departed, *self.queue.admitted])

    def _check_failures(self, groups: Sequence[Group]) -> None:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        check_failures(trajectories, self.config, step=self.version + 1, folder=str(self.folder.root))

    async def _greedy_episodes(self, groups: Sequence[Group]) -> list[Trajectory] | None:
        """Return one greedy episode for the task of each group, if the advantage needs it."""
        if not advantages.get(self.config.algorithm.advantage).needs_greedy:
            return None
        rows = [group.request.row for group in groups]
        greedy = replace(self.setup.sampling, temperature=0.0)
        await self.gpus.to_engines()
        played = await play_all(
            self.workers, make_requests(f"{self.version + 1}-g", rows, n=1, seed=0, sampling=greedy)
        )
        return [group.trajectories[0] for group in played]

    # Train and publish

    async def _train(self, selection: Selection) -> dict[str, float]:
        """Train on the groups of a step; return its metrics."""
        await self.gpus.to_learner()
        with self.timer.stage(Stage.TRAIN):
            batch = await LEARNER.run(self._make_batch, selection)
            staleness = token_staleness(batch, version=self.version)
            assert staleness.get("staleness/max", 0.0) <= self.policy.max_staleness, "a token is too old"
            started = now()
            learned = await LEARNER.run(self.learner.step, batch)
            self._train_seconds = now() - started
        # While a critic warms up, the policy computes nothing that could be compared.
        is_comparable = "logprob_diff" in learned and staleness.get("staleness/max") == 0
        if is_comparable and not self._engine_checked:
            check_engine(learned, self.config, step=self.version + 1)
            self._engine_checked = True
        self.version += 1
        metrics: dict[str, float] = {"step": self.version, "policy_version": self.version, "epoch": self.sampler.epoch}
        metrics |= rollout_metrics(selection.played)
        if isinstance(self.sampler, MixedSampler):
            metrics |= source_metrics(self.sampler, selection.played)
        if self.config.algorithm.dynamic_sampling is not None:
            metrics |= sampling_metrics(selection)
        if self.policy.overlaps:
            metrics |= staleness
        metrics |= {f"batch/{reason}": float(count) for reason, count in sorted(batch.dropped.items())}
        return metrics | batch.metrics | learner_metrics(learned)

    def _make_batch(self, selection: Selection) -> TrainBatch:
        return make_batch(
            [group.trajectories for group in selection.trained],
            self.config.algorithm,
            policy_version=self.version,
            oldest_version=self.version - self.policy.max_staleness,
            greedy=selection.greedy,
            models=TokenModels(
                reference=self.learner.reference_logprobs,
                critic=self.learner.values if isinstance(self.learner, ActorCritic) else None,
                process=self.learner.process_rewards if isinstance(self.learner, WithProcessReward) else None,
                teacher=self._teacher,
            ),
        )

    async def _publish(self) -> None:
        """Send the learner's weights to the workers, if theirs are older and the policy allows the swap."""
        if self.workers.policy_version == self.version:
            return
        seconds = {"tail_seconds": self.producer.tail_seconds, "step_seconds": self._train_seconds}
        if self.policy.may_swap(self.queue.admitted, **seconds):
            await self._swap()

    async def _swap(self) -> None:
        await self.gpus.to_learner()
        with self.timer.stage(Stage.PUBLISH):
            await self.learner.publish(self.workers, self.version)

    async def _publish_for_evaluation(self) -> None:
        """Send the learner's weights to the workers, after the episodes that started with older weights.

        Finished groups keep their deadlines; a policy that would swap later then has nothing left to do.
        """
        if self.workers.policy_version == self.version:
            return
        with self.producer.held(), self.timer.stage(Stage.ROLLOUT):
            await self._let_engines_play()
            while self.queue.num_running:
                await self.producer.changed()
        await self._swap()

    def _finish_step(self) -> dict[str, float]:
        """Record the state for a checkpoint, and let the engines continue; return the metrics of queue and workers."""
        self._state = self._state_now()
        metrics = self.workers.metrics()
        if self.policy.overlaps and not self.gpus.alternate:
            self.producer.admit()
        if self.policy.overlaps or self.config.staleness.cut.is_on:
            metrics |= queue_metrics(self.queue) | self.producer.bias.metrics(self.queue, now())
        return metrics

    # Evaluate and save

    async def _evaluate(self) -> dict[str, float]:
        """Evaluate the weights of this version: in every mode, step N evaluates the weights after N steps."""
        await self._publish_for_evaluation()
        await self.gpus.to_engines()
        with self.timer.stage(Stage.EVAL):
            on_trajectory = partial(self.observer.on_trajectory, self.version)
            metrics, groups = await evaluate(self.setup, self.workers, on_trajectory=on_trajectory)
            await self._write(f"eval_{self.version:06d}", groups)
        return metrics

    async def _write(self, name: str, groups: Sequence[Group]) -> None:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        kept = trajectories[: self.config.run.save_trajectories]
        await FILES.run(self.folder.write_trajectories, name, kept)

    def _state_now(self) -> RunState:
        return replace(super()._state_now(), queue=self.queue.state(), bias=self.producer.bias.state_dict(self.queue))
