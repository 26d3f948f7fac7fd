"""The parts of a learner that do not depend on the backend: mini-batches, plans over ranks, updates and metrics."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import TakesWeights
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster.process_group import pick_device
from agentloop.trainer.learner.freed_memory import return_freed_memory
from agentloop.trainer.learner.metrics.recording import Recorder
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics, num_ranks
from agentloop.trainer.learner.offload.host_offload import HostOffload
from agentloop.trainer.learner.optimizer_update import describe_skipped, learning_rate
from agentloop.trainer.learner.progress import Progress
from agentloop.trainer.learner.protocol import Captured
from agentloop.trainer.learner.sample_masks import SampleMasks
from agentloop.trainer.losses.preference import DpoOptions, log_ratios, pair_metrics
from agentloop.trainer.model.row_layout import Unit, unit_patches, units
from agentloop.trainer.objective.objective import Objective
from agentloop.trainer.planning import CostModel, ModelFlops, plan
from agentloop.weights.tensors import TensorWeights

_log = logging.getLogger(__name__)

_IDLE = Sample(
    token_ids=np.zeros(2, np.int32),
    loss_mask=np.array([False, True]),
    logprobs=np.zeros(2, np.float32),
    versions=np.full(2, -1, np.int32),
    advantage=0.0,
    old_logprobs=np.zeros(1, np.float32),
    reference_logprobs=np.zeros(1, np.float32),
    rival=0.0,
)
"""Sample with weight 0 for ranks without work in a micro-batch, because collectives need every rank."""


class BaseLearner(ABC):
    """A `Learner` without a model; the backend computes and applies gradients. Every rank has one."""

    vision_passes: int
    """Number of passes of the vision tower per update; a backward pass counts as two."""
    _rank: int
    """Index of this rank among the `_num_ranks` ranks with their own sequences."""
    _num_ranks: int
    _share: bool
    """Whether the prompt of a group is only once in a row."""
    _once: bool
    """Whether ranks synchronise only once per mini-batch, so that their numbers of micro-batches may differ."""
    _cost: CostModel
    _flops: ModelFlops

    def __init__(self, config: LearnerConfig) -> None:
        """Check the configuration. Raises `UserError` if it contradicts itself."""
        self.config = config
        self._objective = Objective(config)
        if config.lr_schedule != "constant" and config.total_updates is None:
            raise UserError(f"learner.lr_schedule={config.lr_schedule} needs learner.total_updates. Set it.")
        self._device = pick_device(config.device)
        self._progress = Progress()
        self._masks = SampleMasks(Path(config.model).expanduser())
        self.host_offload = HostOffload()
        """Stores the tensors of the learner while it sleeps."""
        self._recorder: Recorder | None = None
        self.largest_row = 0
        """Number of tokens in the largest micro-batch of this rank so far."""

    @property
    def progress(self) -> Progress:
        """Numbers of steps and updates so far."""
        return self._progress

    @abstractmethod
    def _update(self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool) -> None:
        """Run one optimizer update on a mini-batch; `is_first`: it is the first of its batch."""

    @abstractmethod
    def _clip(self) -> float:
        """Clip the gradient; return its global norm before clipping. All ranks call it."""

    @abstractmethod
    def _step_optimizer(self, lr: float) -> None:
        """Update the parameters with their clipped gradients."""

    @abstractmethod
    def _clear_gradients(self) -> None: ...

    @abstractmethod
    def _resident(self) -> Iterator[Tensor]:
        """Yield all tensors that outlive a step."""

    @abstractmethod
    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]: ...

    @abstractmethod
    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]: ...

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield unsharded parameters in `compute_dtype` under their Hugging Face names, tied parameters once.

        Every rank must consume all of them.
        """

    @abstractmethod
    def capture(self) -> Captured: ...

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train on a batch as in `Learner.step`. An empty batch only increases the step counter."""
        assert not self.host_offload.num_bytes, "the learner must be awake"
        metrics = StepMetrics(self._device)
        if self._recorder is None:
            self._recorder = Recorder(self.config.recording, dist.get_rank() if dist.is_initialized() else 0)
        with self._recorder.step(self._progress.steps + 1):
            samples = self._with_logprobs(batch.samples, metrics)
            for number, indices in enumerate(self.mini_batches(samples)):
                chosen = self._with_rivals([samples[index] for index in indices], metrics)
                self._update(chosen, metrics, is_first=number == 0)
            self._progress.steps += 1
            result = metrics.result()
        self._recorder.write(metrics.spans)
        if self._device.type == "cpu":
            return_freed_memory()
        result["num_tokens"] = float(batch.num_tokens)
        result["num_sampled"] = float(batch.num_sampled)
        result["num_trajectories"] = float(len(batch))
        result["updates_skipped_total"] = float(self._progress.updates_skipped)
        return result

    def _with_logprobs(self, samples: Sequence[Sample], metrics: StepMetrics) -> list[Sample]:
        """Return the samples, with the log-probabilities that the loss needs."""
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

    def _with_rivals(self, samples: Sequence[Sample], metrics: StepMetrics) -> Sequence[Sample]:
        """Return the samples of an update, with the log-ratio of the other answer for a loss on pairs."""
        options = self._objective.loss_options
        if not self._objective.loss.pairwise or not samples:
            return samples
        assert isinstance(options, DpoOptions)
        with metrics.phase("pairs"):
            ratios = log_ratios(self.logprobs(samples), [sample.reference_logprobs for sample in samples])
        places: dict[int | None, list[int]] = {}
        for place, sample in enumerate(samples):
            places.setdefault(sample.episode, []).append(place)
        assert all(len(pair) == 2 for pair in places.values()), "the two answers of a pair must share an episode"
        other = {place: pair[1 - number] for pair in places.values() for number, place in enumerate(pair)}
        in_order = [place for pair in places.values() for place in pair]
        is_better = [bool(np.mean(samples[place].advantage) > 0) for place in in_order]
        metrics.add_values(pair_metrics(ratios[in_order], is_better, options))
        return [replace(sample, rival=float(ratios[other[place]])) for place, sample in enumerate(samples)]

    def mini_batches(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return the indices of the samples of each update of this step; none is empty, and episodes stay whole."""
        episodes: dict[object, list[int]] = {}
        for index, sample in enumerate(samples):
            episodes.setdefault(("alone", index) if sample.episode is None else sample.episode, []).append(index)
        streams = list(episodes.values())
        order = np.arange(len(streams))
        if self.config.mini_batches > 1:
            order = np.random.default_rng((self.config.seed, self._progress.steps)).permutation(len(streams))
        parts = np.array_split(order, self.config.mini_batches)
        return [[index for place in part for index in streams[place]] for part in parts if len(part)]

    def flops_of(self, samples: Sequence[Sample], row: list[Unit]) -> float:
        """Return the FLOPs of the forward and backward pass of a row."""
        work = 0.0
        for unit in row:
            lengths = [len(samples[index]) for index in unit.indices]
            num_sampled = sum(samples[index].num_sampled for index in unit.indices)
            work += 3 * self._flops.forward_shared(unit.prefix, lengths, num_sampled)
            if self.config.lora is not None:  # frozen weights have no gradient
                work -= self._flops.matrices(sum(lengths) - (len(lengths) - 1) * unit.prefix, num_sampled)
            if self._flops.vision is not None:
                work += self.vision_passes * self._flops.vision.forward(unit_patches(samples, unit))
        return work

    def _with_gradient(self, samples: Sequence[Sample]) -> list[int]:
        """Return the indices of the samples of a mini-batch that need a backward pass.

        If none has an advantage, return all, so that the metrics of the policy are still measured.
        """
        found = list(range(len(samples)))
        if self.config.skip_zero_advantage and self._objective.is_zero_without_advantage:
            return [index for index in found if samples[index].has_advantage] or found
        return found

    def _rows(
        self, samples: Sequence[Sample], indices: list[int], metrics: StepMetrics | None = None
    ) -> list[list[Unit]]:
        """Return this rank's micro-batches as units of sample indices.

        All ranks have the same number, or, if they synchronise once per mini-batch, at least one.
        """
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

    @staticmethod
    def _row_samples(
        samples: Sequence[Sample], row: list[Unit], weights: np.ndarray
    ) -> tuple[list[Sample], np.ndarray, list[Unit]]:
        """Return the samples of a row, the weights of their tokens, and its units; an empty row gets the idle sample.

        `weights` has the weights of all samples. Units contain indices in the whole mini-batch.
        """
        if not row:
            return [_IDLE], np.zeros(1), [Unit([0], 0, len(_IDLE))]
        indices = [index for unit in row for index in unit.indices]
        return [samples[index] for index in indices], weights[indices], row

    def _finish_update(
        self,
        samples: Sequence[Sample],
        rows: list[list[Unit]],
        losses: list[Tensor],
        metrics: StepMetrics,
        *,
        counts: bool = True,
    ) -> None:
        """Clip and step; if the loss or gradient is not finite, skip the update and log its trajectories.

        `losses` has the loss of each row. They are part of the metrics if `counts`; otherwise another rank reports
        them.
        """
        progress = self._progress
        with metrics.phase("optimizer"):
            loss = sum(losses if counts else [], torch.zeros((), device=self._device))
            if num_ranks() > 1:
                dist.all_reduce(loss)
            lr = learning_rate(self.config, progress.updates + progress.updates_skipped)
            values = {"loss": loss.item(), "grad_norm": self._clip(), "lr": lr}
            is_finite = bool(np.isfinite([values["loss"], values["grad_norm"]]).all())
            if is_finite:
                self._step_optimizer(lr)
                progress.updates += 1
            else:
                progress.updates_skipped += 1
            if self.config.compute_dtype == "float16":
                progress.rescale(is_finite=is_finite)
            self._clear_gradients()
        metrics.add_update(values, skipped=not is_finite)
        if not is_finite and losses:
            indices = [[index for unit in row for index in unit.indices] for row in rows]
            found = torch.stack(losses).tolist()
            _log.warning("%s", describe_skipped(samples, indices, found, values["grad_norm"]))

    def sleep(self) -> None:
        """Move the learner's tensors to host memory."""
        if not self.host_offload.num_bytes:
            self.host_offload.offload(self._resident(), self._device)

    def wake(self) -> None:
        """Move the learner's tensors back to the device."""
        self.host_offload.restore()

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """Send the current weights to the engine as `version`."""
        await engine.update_weights(TensorWeights(self.weights()), version)

    def save(self, folder: Path) -> None:
        """Write all state that an exact resume needs."""
        self.capture().write(folder)

    def close(self) -> None:  # noqa: B027  most learners have nothing to close
        """Release processes and other resources of the learner."""
