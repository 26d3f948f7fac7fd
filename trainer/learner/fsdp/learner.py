"""The default learner: a transformers model on torch FSDP2, with packed micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.learner.base_learner import BaseLearner
from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.learner.fsdp import state as fsdp_state
from agentloop.trainer.learner.fsdp.models import Models
from agentloop.trainer.learner.measured_costs import MeasuredCosts, Stopwatch
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics
from agentloop.trainer.learner.micro_batch import MicroBatch
from agentloop.trainer.learner.offload.optimizer_offload import OffloadedAdamW
from agentloop.trainer.learner.progress import Progress
from agentloop.trainer.model import lora
from agentloop.trainer.model.head.fused_head import ChunkLoss
from agentloop.trainer.model.packed_lm import PackedCausalLM
from agentloop.trainer.model.row_layout import Unit
from agentloop.trainer.planning import CostModel, ModelFlops
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import Precision, training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.weights.files import weights_digest
from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import SharedWeights


class FsdpLearner(BaseLearner):
    """A `RankLearner`. Every rank creates one, and calls every method with the same arguments."""

    _fuses_head = True
    """Whether the loss is computed together with the log-probabilities, chunk by chunk (`fused_head`)."""

    def __init__(self, config: LearnerConfig) -> None:
        """Load the models and shard them. Raises `UserError` if the configuration or a model is unusable."""
        super().__init__(config)
        self._models = Models(config, self._device)
        self._sequence = self._models.sequence
        self._world = self._models.mesh.size()
        sharing = config.sequence_parallel
        self._rank, self._num_ranks = self._models.mesh.get_rank() // sharing, self._world // sharing
        self.policy = self._models.policy(self._wrap)
        """The sharded model in training; read-only for other modules."""
        self._share, self._once = self._models.shares_prefixes, self._models.gathers_once
        self._unmerged = config.lora is not None and config.lora.publish == "adapters"
        if self._unmerged:
            lora.check_publishable(self.policy.model)
        self._placement = self._models.place(self.policy)
        self.reference: PackedCausalLM | None = None
        """The sharded reference model, if one was loaded."""
        if config.loads_reference:
            self.reference = self._models.reference()
            self._reference_placement = self._models.place(self.reference)
        adamw = OffloadedAdamW if self._models.offload == "optimizer" else torch.optim.AdamW
        self.optimizer: torch.optim.Optimizer = adamw(
            [parameter for parameter in self.policy.parameters() if parameter.requires_grad],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        if any(not parameter.requires_grad for parameter in self.policy.parameters()):
            self._progress.frozen = weights_digest(Path(config.model).expanduser())
        hf_config: Any = self.policy.model.config
        with packing_check.refusing(hf_config.model_type):
            self._set_costs()
        self._shelf = ShardedShelf()

    def _wrap(self, policy: PackedCausalLM) -> PackedCausalLM:
        """Return the model to train; a subclass may give it another head."""
        return policy

    def _set_costs(self) -> None:
        """Set the cost model of plans and the FLOPs of metrics."""
        hf_config, refines = self.policy.model.config, self.config.refine_costs
        self._flops = ModelFlops.from_config(hf_config)
        is_frozen = self.config.freeze_vision or self.config.lora is not None
        self.vision_passes = 1 if is_frozen else 3
        self._cost = replace(CostModel.from_config(hf_config), per_vision_flop=float(self.vision_passes))
        if refines and not self._once:
            raise UserError(
                "learner.refine_costs measures micro-batches, in which ranks wait for each other unless parameters are "
                "gathered once. Set learner.gather_once=true, or omit refine_costs."
            )
        if refines is None:
            refines = self._num_ranks > 1 and self._device.type == "cuda"
        self._measured_costs = MeasuredCosts(self._cost) if refines and self._once else None

    def step(self, batch: TrainBatch) -> dict[str, float]:
        result = super().step(batch)
        if self.config.reference_every and self._progress.steps % self.config.reference_every == 0:
            self._move_reference()
        if "memory_peak_gib" in result and self._models.offload != "all":
            expected = training_memory(
                self._shape,
                replace(Layout.of(self.config, self._world), token_budget=self.largest_row),
                precision=Precision.of(self.config),
                reference=self.reference is not None,
                gather_once=self._once,
                lora_rank=self.config.lora.rank if self.config.lora else 0,
            )
            result["memory_expected_gib"] = expected.total / 2**30
            result["largest_row"] = float(self.largest_row)
        return result

    @cached_property
    def _shape(self) -> ModelShape:
        return ModelShape.from_config(self.policy.model.config)

    def _update(self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool) -> None:
        self._clear_gradients()  # an update that failed, perhaps out of memory, may have left some
        weights = self._objective.weights(samples)
        watch, losses = Stopwatch(self._device), []
        with metrics.phase("forward_backward"):
            rows = self._rows(samples, self._with_gradient(samples), metrics)
            with self._placement.computing():
                for number, row in enumerate(rows):
                    self._placement.before_backward(is_last=number == len(rows) - 1)
                    watch.lap()
                    micro = self._micro_batch(samples, row, weights, replays=self.config.router_replay)
                    losses.append(self._backward(micro, metrics if row else None, is_first=is_first))
                    metrics.add_work(self.flops_of(samples, row) / self.config.sequence_parallel)
                watch.lap()
        if self._measured_costs is not None:
            self._cost = self._measured_costs.after(samples, rows, watch.seconds())
        self._finish_update(samples, rows, losses, metrics)

    def _micro_batch(
        self, samples: Sequence[Sample], row: list[Unit], weights: np.ndarray, *, replays: bool
    ) -> MicroBatch:
        """Return the tensors of a row; `weights` are of all samples. `replays`: use the engine's experts."""
        chosen, own_weights, units = self._row_samples(samples, row, weights)
        # If the tower is sharded, all ranks must run it if one does.
        formats = (placed.image.format for sample in samples for placed in sample.images)
        if not replays:
            chosen = [replace(sample, routed=None) for sample in chosen]
        micro = MicroBatch.of(
            chosen,
            own_weights,
            self._device,
            units=units,
            padded=self._models.padded,
            unseen=next(formats, None) if self._num_ranks > 1 else None,
            masks=self._masks,
        )
        return micro if self._sequence is None else micro.own_part(self._sequence)

    def _forward(
        self, micro: MicroBatch, policy: PackedCausalLM, chunk_loss: ChunkLoss | None = None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        return policy(
            micro.input_ids,
            micro.row,
            micro.positions,
            micro.targets,
            self.config.temperature,
            chunk_loss,
            micro.pictures,
            None if self._objective.is_tokenwise else micro.tokens.sizes,
            micro.allowed,
        )

    @property
    def _loss_scale(self) -> float:
        return self._progress.loss_scale if self.config.compute_dtype == "float16" else 1.0

    def _scaled_loss(self, tokens: TrainedTokens, logprobs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        return self._objective.of_rows(tokens, logprobs, entropy, rows) * self._loss_scale

    def _backward(self, micro: MicroBatch, metrics: StepMetrics | None, *, is_first: bool) -> Tensor:
        """Add the gradient of a micro-batch; return its share of the loss."""
        tokens = micro.tokens
        # A rank with a part of a row may have only parts of trajectories.
        if self._fuses_head and (self._objective.is_tokenwise or micro.part is None):
            chunk_loss = partial(self._scaled_loss, tokens)
            loss, logprobs, entropy = self._forward(micro, self.policy, chunk_loss)
            assert loss is not None
            loss.backward()
            loss = loss / self._loss_scale
            with torch.no_grad():
                _, token_metrics = self._objective(logprobs, entropy, tokens)
        else:
            _, logprobs, entropy = self._forward(micro, self.policy)
            if self._sequence is not None and micro.part is not None:
                places, tokens = micro.part.places, micro.part.tokens
                logprobs = self._sequence.assemble(logprobs, places, len(tokens))
                entropy = self._sequence.assemble(entropy, places, len(tokens))
            loss, token_metrics = self._objective(logprobs, entropy, tokens)
            (loss * self._loss_scale).backward()
            if self._sequence is not None and self._sequence.rank > 0:
                # All ranks of the row compute the same loss, so only the first reports it.
                loss, token_metrics, is_first = torch.zeros_like(loss), {}, False
        if metrics is not None:
            metrics.add_tokens(micro.input_ids.numel() if micro.part is None else micro.part.num_tokens, token_metrics)
            metrics.add_routing(self.policy.routing.load, self.policy.routing.layers)
            if self._objective.loss.on_policy and is_first:
                metrics.add_difference((logprobs.detach() - tokens.rollout_logprobs).abs())
        return loss.detach()

    def _clip(self) -> float:
        parameters = [parameter for parameter in self.policy.parameters() if parameter.grad is not None]
        if (scale := self._loss_scale) != 1.0:
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad /= scale
        limit = float("inf") if self.config.grad_clip is None else self.config.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        return float((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())

    def _step_optimizer(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _move_reference(self) -> None:
        """Copy the policy to the reference model."""
        assert self.reference is not None
        now = dict(self.policy.named_parameters())
        for name, parameter in self.reference.named_parameters():
            parameter.copy_(now[name])  # both are sharded alike

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Return the log-probabilities of sampled tokens under the current weights, float32 [num_sampled] each."""
        with self._placement.computing():
            return self._score(self.policy, samples, replays=self.config.router_replay)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Return the log-probabilities under the reference model, or under the model without its adapters."""
        if self.reference is None and self.config.needs_reference:
            with self._placement.computing(), lora.switched_off(self.policy):
                return self._score(self.policy, samples, replays=False)
        if self.reference is None:
            raise UserError("The learner has no reference model. Set learner.reference, or learner.kl_coef above 0.")
        with self._reference_placement.computing():
            return self._score(self.reference, samples, replays=False)

    @torch.no_grad()
    def _score(self, policy: PackedCausalLM, samples: Sequence[Sample], *, replays: bool) -> list[np.ndarray]:
        result: list[np.ndarray] = [np.zeros(sample.num_sampled, np.float32) for sample in samples]
        for row in self._rows(samples, list(range(len(samples)))):
            micro = self._micro_batch(samples, row, np.zeros(len(samples)), replays=replays)
            _, logprobs, _ = self._forward(micro, policy)
            if micro.part is not None:  # the sum over ranks adds the other parts
                logprobs = logprobs.new_zeros(len(micro.part.tokens)).index_copy_(0, micro.part.places, logprobs)
            indices = [index for unit in row for index in unit.indices]
            ends = np.cumsum([len(result[index]) for index in indices], dtype=np.int64)
            for index, part in zip(indices, np.split(logprobs.cpu().numpy(), ends), strict=False):
                result[index][:] = part
        if self._world > 1 and samples:
            _sum_over_ranks(result, self._device)
        return result

    def _resident(self) -> Iterator[Tensor]:
        for policy in (self.policy, self.reference):
            if policy is not None:
                yield from policy.parameters()
                yield from policy.buffers()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield unsharded parameters in `compute_dtype` under their Hugging Face names, tied parameters once.

        With one rank a tensor may share memory with the learner: copy it to keep it beyond the next `step`.
        """
        for name, parameter in self._published():
            # An engine may call this in inference mode, in which torch 2.11 cannot gather DTensors.
            with torch.inference_mode(False), torch.no_grad():
                # Cast first, so that ranks exchange only the published precision.
                weight = parameter.detach().to(self._models.compute_dtype)
                weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
            yield name, weight

    @torch.inference_mode(False)
    @torch.no_grad()
    def share(self, on_host: bool) -> SharedWeights | None:
        """Share the weights as in `RankLearner.share`; only one rank holds each parameter unsharded."""
        named = self.policy.model.named_parameters()
        sizes = {name: parameter.numel() for name, parameter in named if lora.is_adapter(name) == self._unmerged}
        return self._shelf.fill(self._published(), self._models.compute_dtype, sizes, on_host=on_host)

    def _published(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters under the names that engines know; every rank must consume all of them."""
        if self._unmerged:
            yield from lora.unmerged(self.policy.model)
        else:
            yield from lora.merged(self.policy.model, self.policy.model.named_parameters())

    def capture(self) -> fsdp_state.LearnerState:
        return fsdp_state.LearnerState(self.policy, self.optimizer, self._progress, self._moving_reference)

    def load(self, folder: Path) -> None:
        self._check_frozen(folder)
        frozen = self._progress.frozen
        self._progress = fsdp_state.load(folder, self.policy, self.optimizer, self._moving_reference)
        self._progress.frozen = frozen

    def _check_frozen(self, folder: Path) -> None:
        """Raise `UserError` if a saved state was trained with other frozen parameters than this model has."""
        saved = Progress.read(folder).frozen
        if saved and self._progress.frozen and saved != self._progress.frozen:
            raise UserError(
                f"The weights in {self.config.model} have changed since the run started, but checkpoints contain only "
                "what was trained on top of them. Restore these weights, or set run.folder to a new folder."
            )

    @property
    def _moving_reference(self) -> PackedCausalLM | None:
        """The reference, if a resume needs its weights."""
        return None if self.config.reference_every is None else self.reference

    def load_weights(self, folder: Path) -> None:
        """Restore only the weights of a saved state. Raises `UserError` as `load` does."""
        self._check_frozen(folder)
        fsdp_state.load_weights(folder, self.policy)

    def save_hf(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, with weights in `save_dtype`."""
        fsdp_state.save_hf(folder, self.policy, Path(self.config.model).expanduser(), self.config)


def _sum_over_ranks(arrays: list[np.ndarray], device: torch.device) -> None:
    """Sum arrays over ranks in place; each rank has zeros for values that other ranks computed."""
    flat = torch.from_numpy(np.concatenate(arrays)).to(device)
    dist.all_reduce(flat)
    ends = np.cumsum([len(array) for array in arrays])
    for array, part in zip(arrays, np.split(flat.cpu().numpy(), ends[:-1]), strict=True):
        array[:] = part
