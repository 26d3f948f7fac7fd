"""What learners of all backends do alike: mini-batches, plans over data-parallel ranks, one line of metrics a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch import Tensor

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import TakesWeights
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster.process_group import pick_device
from agentloop.trainer.learner.metrics.recording import Recorder
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics
from agentloop.trainer.learner.offload.host_offload import HostOffload
from agentloop.trainer.learner.progress import Progress
from agentloop.trainer.learner.protocol import Captured
from agentloop.trainer.model.row_layout import Unit, unit_patches, units
from agentloop.trainer.objective.objective import Objective
from agentloop.trainer.planning import CostModel, ModelFlops, plan
from agentloop.weights.tensors import TensorWeights

IDLE = Sample(
    token_ids=np.zeros(2, np.int32),
    loss_mask=np.array([False, True]),
    logprobs=np.zeros(2, np.float32),
    versions=np.full(2, -1, np.int32),
    advantage=0.0,
    old_logprobs=np.zeros(1, np.float32),
    reference_logprobs=np.zeros(1, np.float32),
)
"""What a rank without work in a micro-batch passes with weight 0: collectives need every rank."""


class BaseLearner(ABC):
    """A `Learner` but for the model: a backend says how a mini-batch is computed. Every rank has one."""

    _rank: int
    """Of those that have sequences of their own, `_num_ranks` in all."""
    _num_ranks: int
    _share: bool
    """Prompts of a group are in a row once."""
    _once: bool
    """Ranks meet once a mini-batch, so that they may have unequal numbers of micro-batches."""
    _cost: CostModel
    _flops: ModelFlops
    _vision_passes: int
    """Of the tower, a backward counting as two."""

    def __init__(self, config: LearnerConfig) -> None:
        """Raises `UserError` where the configuration contradicts itself."""
        self.config = config
        self._objective = Objective(config)
        if config.lr_schedule != "constant" and config.total_updates is None:
            raise UserError(f"learner.lr_schedule={config.lr_schedule} needs learner.total_updates.")
        self._device = pick_device(config.device)
        self._progress = Progress()
        self._parked = HostOffload()
        self._recorder: Recorder | None = None
        self.largest_row = 0
        """Tokens of the largest micro-batch that this rank has had."""

    @property
    def progress(self) -> Progress:
        """How far training is."""
        return self._progress

    @abstractmethod
    def _update(self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool) -> None:
        """Make one optimizer update with the gradient of a mini-batch. `is_first`: of the batch's mini-batches."""

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, float32 [num_sampled]."""

    @abstractmethod
    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters under their Hugging Face names, tied ones once, in `compute_dtype`; every rank must take all
        of them."""

    @abstractmethod
    def capture(self) -> Captured:
        """See `Learner.capture`."""

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """See `Learner.step`. An empty batch changes nothing but the number of steps."""
        assert not self._parked.num_bytes, "awake"
        metrics = StepMetrics(self._device)
        if self._recorder is None:
            self._recorder = Recorder(self.config.recording, dist.get_rank() if dist.is_initialized() else 0)
        with self._recorder.step(self._progress.steps + 1):
            samples = self._with_logprobs(batch.samples, metrics)
            for number, indices in enumerate(self._mini_batches(len(samples))):
                self._update([samples[index] for index in indices], metrics, is_first=number == 0)
            self._progress.steps += 1
            result = metrics.result()
        self._recorder.write(metrics.spans)
        result["num_tokens"] = float(batch.num_tokens)
        result["num_sampled"] = float(batch.num_sampled)
        result["num_trajectories"] = float(len(batch))
        result["updates_skipped_total"] = float(self._progress.updates_skipped)
        return result

    def _with_logprobs(self, samples: Sequence[Sample], metrics: StepMetrics) -> list[Sample]:
        """The samples with the log-probabilities that the loss asks for, where they lack them."""
        samples = list(samples)
        if self._objective.needs_reference and any(sample.reference_logprobs is None for sample in samples):
            with metrics.phase("reference_logprobs"):
                found = self.reference_logprobs(samples)
            samples = [replace(sample, reference_logprobs=part) for sample, part in zip(samples, found, strict=True)]
        if self._objective.needs_old_logprobs:
            with metrics.phase("old_logprobs"):
                found = self.logprobs(samples)
            samples = [replace(sample, old_logprobs=part) for sample, part in zip(samples, found, strict=True)]
        return samples

    def _mini_batches(self, count: int) -> list[list[int]]:
        """Indices of the samples of each update; no empty ones."""
        if self.config.mini_batches == 1:
            return [list(range(count))] if count else []
        order = np.random.default_rng((self.config.seed, self._progress.steps)).permutation(count)
        return [part.tolist() for part in np.array_split(order, self.config.mini_batches) if len(part)]

    def _flops_of(self, samples: Sequence[Sample], row: list[Unit]) -> float:
        """Of forward and backward."""
        work = 0.0
        for unit in row:
            lengths = [len(samples[index]) for index in unit.indices]
            num_sampled = sum(samples[index].num_sampled for index in unit.indices)
            work += 3 * self._flops.forward_shared(unit.prefix, lengths, num_sampled)
            if self.config.lora is not None:  # frozen weights have no gradient
                work -= self._flops.matrices(sum(lengths) - (len(lengths) - 1) * unit.prefix, num_sampled)
            if self._flops.vision is not None:
                work += self._vision_passes * self._flops.vision.forward(unit_patches(samples, unit))
        return work

    def _with_gradient(self, samples: Sequence[Sample]) -> list[int]:
        """Return the indices of the samples of a mini-batch that need a backward pass.

        If none has an advantage, these are all of them, so that the policy's metrics stay known.
        """
        found = list(range(len(samples)))
        if self.config.skip_zero_advantage and self._objective.is_zero_without_advantage:
            return [index for index in found if samples[index].has_advantage] or found
        return found

    def _rows(
        self, samples: Sequence[Sample], indices: list[int], metrics: StepMetrics | None = None
    ) -> list[list[Unit]]:
        """This rank's micro-batches, as units of indices of samples: as many as the others have, or at least one."""
        budget = self.config.token_budget
        found = units(samples, indices, budget, share=self._share)
        lengths = [unit.num_tokens for unit in found]
        costs = [
            self._cost.shared(unit.prefix, [len(samples[index]) for index in unit.indices])
            + self._cost.images(unit_patches(samples, unit))
            for unit in found
        ]
        planned = plan(
            lengths,
            ranks=self._num_ranks,
            token_budget=budget,
            cost=costs,
            per_micro_batch=self._cost.per_micro_batch,
            lockstep=not self._once,
        )
        if metrics is not None:
            metrics.add_balance(planned.balance)
        rows = [[found[place] for place in row] for row in planned.ranks[self._rank]]
        self.largest_row = max([self.largest_row, *(sum(unit.num_tokens for unit in row) for row in rows)])
        return rows or ([[]] if self._once and samples else [])

    @abstractmethod
    def _resident(self) -> Iterator[Tensor]:
        """All tensors that outlive a step."""

    def sleep(self) -> None:
        """See `Learner.sleep`."""
        if not self._parked.num_bytes:
            self._parked.park(self._resident(), self._device)

    def wake(self) -> None:
        """See `Learner.wake`."""
        self._parked.bring_back()

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """See `Learner.publish`."""
        await engine.update_weights(TensorWeights(self.weights()), version)

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        self.capture().write(folder)

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """See `Learner.close`."""
