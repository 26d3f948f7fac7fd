"""The default learner: a transformers model on torch FSDP2, with packed micro-batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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
from agentloop.trainer.cluster.process_group import data_parallel_mesh, node_mesh, sequence_group
from agentloop.trainer.learner import skipped
from agentloop.trainer.learner.base_learner import IDLE, BaseLearner
from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.learner.fsdp import state as fsdp_state
from agentloop.trainer.learner.fsdp.sharded import ShardedModel, fits_whole
from agentloop.trainer.learner.fsdp.unsharded import UnshardedModel
from agentloop.trainer.learner.lr_schedule import learning_rate
from agentloop.trainer.learner.measured_costs import MeasuredCosts
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics
from agentloop.trainer.learner.metrics.stopwatch import Stopwatch
from agentloop.trainer.learner.micro_batch import MicroBatch
from agentloop.trainer.learner.offload.optimizer_offload import OffloadedAdamW
from agentloop.trainer.model import lora
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.head.fused_head import ChunkLoss
from agentloop.trainer.model.packed_lm import PackedCausalLM, load_packed_lm
from agentloop.trainer.model.row_layout import Unit
from agentloop.trainer.planning import CostModel, ModelFlops
from agentloop.trainer.planning.costs import Measured
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import Precision, training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import SharedWeights

_log = logging.getLogger(__name__)


class FsdpLearner(BaseLearner):
    """A `Learner`. Every rank makes one, and calls every method with the same arguments."""

    _fuses_head = True
    """The loss is computed with the log-probabilities, chunk by chunk (`fused_head`)."""

    def __init__(self, config: LearnerConfig) -> None:
        """Load the model and shard it. Raises `UserError` where the configuration or the model cannot be used."""
        super().__init__(config)
        self._mesh = data_parallel_mesh(self._device)
        self._world = self._mesh.size()
        self._shards = node_mesh(self._mesh, config.nodes) if config.shard == "node" else self._mesh
        sharing = config.sequence_parallel
        self._sequence = sequence_group(self._mesh, sharing)
        self._rank, self._num_ranks = self._mesh.get_rank() // sharing, self._world // sharing
        self._compute_dtype: torch.dtype = getattr(torch, config.compute_dtype)
        kernel = choose(config.attention, self._device, self._compute_dtype)
        self._padded = kernel == "sdpa"
        policy = self._load(kernel)
        self._offload = config.offload if self._device.type == "cuda" else "off"
        self._once = self._gathers_once(policy)
        if config.checkpointing == "sparse" and not self._once:
            raise UserError(
                "learner.checkpointing=sparse computes layers again while others have their turn, so parameters must "
                "be gathered once (learner.gather_once). Set learner.checkpointing=full."
            )
        self._policy = policy.to(self._device)
        self._placement = self._place(self._policy)
        self._reference: PackedCausalLM | None = None
        if config.loads_reference:
            folder = Path(config.reference or config.model).expanduser()
            reference = load_packed_lm(folder, self._compute_dtype, kernel=kernel, sequence=self._sequence)
            self._reference = reference.requires_grad_(False).to(self._device)
            if folder != Path(config.model).expanduser():
                self._check(self._reference)
            self._reference_placement = self._place(self._reference)
        adamw = OffloadedAdamW if self._offload == "optimizer" else torch.optim.AdamW
        self._optimizer = adamw(
            [parameter for parameter in self._policy.parameters() if parameter.requires_grad],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        hf_config: Any = self._policy.model.config
        with packing_check.refusing(hf_config.model_type):
            self._set_costs()
        self._shelf = ShardedShelf()

    def _shares_prefixes(self, policy: PackedCausalLM, kernel: str) -> bool:
        asked = self.config.share_prefixes
        if asked and policy.has_sliding_window:
            raise UserError(
                "learner.share_prefixes is true, but this model has layers that see a window of the nearest tokens "
                "only, and these cannot share a prompt. Leave share_prefixes out."
            )
        return not policy.has_sliding_window and (kernel != "sdpa" if asked is None else asked)

    def _load(self, kernel: str) -> PackedCausalLM:
        config = self.config
        compiled = self._device.type == "cuda" if config.compile_layers is None else config.compile_layers
        # What is frozen needs no more digits than it is computed with.
        dtype = config.compute_dtype if config.lora else config.param_dtype
        policy = load_packed_lm(
            Path(config.model).expanduser(),
            getattr(torch, dtype),
            kernel=kernel,
            checkpointing=config.checkpointing,
            compiled=compiled and not self._padded,
            sequence=self._sequence,
            adapt=self._adapt if config.lora else None,
        )
        if config.freeze_vision:
            policy.freeze_vision()
        self._share = self._shares_prefixes(policy, kernel)
        self._check(policy.to(self._device))
        return self._wrap(policy)

    def _check(self, policy: PackedCausalLM) -> None:
        """Before it is sharded: each rank then has all of it, and need not wait for others."""
        if packing_check.NAME not in self.config.skip_checks:
            packing_check.check(policy, shares_prefixes=self._share, sequence=self._sequence)

    def _adapt(self, policy: PackedCausalLM) -> None:
        config = self.config
        assert config.lora is not None
        tower = policy.tower_layers()
        layers = [layer for layer in policy.layers() if layer not in tower]
        lora.add_adapters(policy.model, layers, config.lora, getattr(torch, config.param_dtype), config.seed)

    def _set_costs(self) -> None:
        """What plans and rates are made from."""
        hf_config, refines = self._policy.model.config, self.config.refine_costs
        self._flops = ModelFlops.from_config(hf_config)
        is_frozen = self.config.freeze_vision or self.config.lora is not None
        self._vision_passes = 1 if is_frozen else 3
        self._cost = replace(CostModel.from_config(hf_config), per_vision_flop=float(self._vision_passes))
        if refines and not self._once:
            raise UserError(
                "learner.refine_costs measures micro-batches, in which ranks wait for each other unless parameters are "
                "gathered once. Set learner.gather_once=true, or leave refine_costs out."
            )
        if refines is None:
            refines = self._num_ranks > 1 and self._device.type == "cuda"
        self._measured_costs = MeasuredCosts(self._cost) if refines and self._once else None

    def _wrap(self, policy: PackedCausalLM) -> PackedCausalLM:
        """What is trained: a subclass may put another head on it."""
        return policy

    def _place(self, policy: PackedCausalLM) -> UnshardedModel | ShardedModel:
        if self._world == 1 and self._once:
            return UnshardedModel(policy, self._compute_dtype)
        offload = self._offload == "all"
        return ShardedModel(policy, self._shards, self._compute_dtype, gather_once=self._once, offload=offload)

    def _gathers_once(self, policy: PackedCausalLM) -> bool:
        if self._offload == "all":
            if self.config.gather_once:
                raise UserError("learner.offload=all takes layers to the device one by one: leave gather_once out.")
            return False
        if self.config.gather_once is not None:
            return self.config.gather_once
        return self._world == 1 or fits_whole(policy, self._device, self._compute_dtype)

    @property
    def policy(self) -> PackedCausalLM:
        """The sharded module, for reading."""
        return self._policy

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """See `Learner.step`."""
        result = super().step(batch)
        if "memory_peak_gib" in result and self._offload != "all":
            shape = ModelShape.from_config(self._policy.model.config)
            expected = training_memory(
                shape,
                replace(Layout.of(self.config, self._world), token_budget=self.largest_row),
                precision=Precision.of(self.config),
                reference=self._reference is not None,
                gather_once=self._once,
                lora_rank=self.config.lora.rank if self.config.lora else 0,
            )
            result["memory_expected_gib"] = expected.total / 2**30
            result["largest_row"] = float(self.largest_row)
        return result

    def _update(self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool) -> None:
        self._optimizer.zero_grad(set_to_none=True)  # of an update that failed, for want of memory perhaps
        rows, losses = self._add_gradients(samples, metrics, is_first=is_first)
        with metrics.phase("optimizer"):
            norm = self._apply(sum(losses, torch.zeros((), device=self._device)), metrics)
        if norm is not None:
            found = torch.stack(losses).tolist() if losses else []
            indices = [[index for unit in row for index in unit.indices] for row in rows]
            _log.warning("%s", skipped.describe(samples, indices, found, norm))

    def _add_gradients(
        self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool
    ) -> tuple[list[list[Unit]], list[Tensor]]:
        """Run forward and backward of this rank's micro-batches; return them, and the loss of each."""
        weights = self._objective.weights([sample.num_sampled for sample in samples])
        watch, losses = Stopwatch(self._device), []
        with metrics.phase("forward_backward"):
            rows = self._rows(samples, self._with_gradient(samples), metrics)
            with self._placement.computing():
                for number, row in enumerate(rows):
                    self._placement.before_backward(is_last=number == len(rows) - 1)
                    watch.lap()
                    micro = self._micro_batch(samples, row, weights)
                    losses.append(self._backward(micro, metrics if row else None, is_first=is_first))
                    metrics.add_work(self._flops_of(samples, row) / self.config.sequence_parallel)
                watch.lap()
        if self._measured_costs is not None:
            found = self._on_all_ranks(_measured(self._measured_costs, samples, rows, watch.seconds()))
            self._cost = self._measured_costs.learn(found)
        return rows, losses

    def _on_all_ranks(self, mine: list[tuple[Measured, float]]) -> list[tuple[Measured, float]]:
        if self._world == 1:
            return mine
        parts: list[list[tuple[Measured, float]]] = [[] for _ in range(self._world)]
        dist.all_gather_object(parts, mine)
        return [pair for part in parts for pair in part]

    def _micro_batch(self, samples: Sequence[Sample], row: list[Unit], weights: np.ndarray) -> MicroBatch:
        """`weights` are of all samples. Without units, the idle one."""
        indices = [index for unit in row for index in unit.indices]
        chosen = [samples[index] for index in indices] or [IDLE]
        # Where ranks gather parts of the tower from each other, all run it if any does.
        formats = (placed.image.format for sample in samples for placed in sample.images)
        micro = MicroBatch.of(
            chosen,
            weights[indices] if row else [0.0],
            self._device,
            units=row or None,
            padded=self._padded,
            unseen=next(formats, None) if self._num_ranks > 1 else None,
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
        )

    def _backward(self, micro: MicroBatch, metrics: StepMetrics | None, *, is_first: bool) -> Tensor:
        """Add the gradient of a micro-batch; returns its share of the loss."""
        tokens = micro.tokens
        # A rank that has a part of a row may not have whole trajectories.
        if self._fuses_head and (self._objective.is_tokenwise or micro.part is None):
            chunk_loss = partial(self._objective.of_rows, tokens)
            loss, logprobs, entropy = self._forward(micro, self._policy, chunk_loss)
            assert loss is not None
            loss.backward()
            with torch.no_grad():
                _, token_metrics = self._objective(logprobs, entropy, tokens)
        else:
            _, logprobs, entropy = self._forward(micro, self._policy)
            if self._sequence is not None and micro.part is not None:
                places, tokens = micro.part.places, micro.part.tokens
                logprobs = self._sequence.assemble(logprobs, places, len(tokens))
                entropy = self._sequence.assemble(entropy, places, len(tokens))
            loss, token_metrics = self._objective(logprobs, entropy, tokens)
            loss.backward()
            if self._sequence is not None and self._sequence.rank > 0:
                loss, token_metrics, is_first = (
                    torch.zeros_like(loss),
                    {},
                    False,
                )  # the row's first says it all
        if metrics is not None:
            metrics.add_tokens(micro.input_ids.numel() if micro.part is None else micro.part.num_tokens, token_metrics)
            if self._objective.loss.on_policy and is_first:
                metrics.add_difference((logprobs.detach() - tokens.rollout_logprobs).abs())
        return loss.detach()

    def _apply(self, loss: Tensor, metrics: StepMetrics) -> float | None:
        """Clip and step, or drop an update whose loss or gradient is not finite: then return that gradient's norm."""
        config, progress = self.config, self._progress
        parameters = [parameter for parameter in self._policy.parameters() if parameter.grad is not None]
        limit = float("inf") if config.grad_clip is None else config.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self._world > 1:
            dist.all_reduce(loss)
        lr = learning_rate(config, progress.updates + progress.updates_skipped)
        values = {"loss": loss.item(), "grad_norm": norm.item(), "lr": lr}
        is_finite = np.isfinite([values["loss"], values["grad_norm"]]).all()
        if is_finite:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            progress.updates += 1
        else:
            progress.updates_skipped += 1
        self._optimizer.zero_grad(set_to_none=True)
        metrics.add_update(values, skipped=not is_finite)
        return None if is_finite else values["grad_norm"]

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, float32 [num_sampled]."""
        with self._placement.computing():
            return self._score(self._policy, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        if self._reference is None and self.config.needs_reference:
            with self._placement.computing(), lora.switched_off(self._policy):
                return self._score(self._policy, samples)
        if self._reference is None:
            raise UserError("The learner has no reference model. Set learner.reference, or learner.kl_coef above 0.")
        with self._reference_placement.computing():
            return self._score(self._reference, samples)

    @torch.no_grad()
    def _score(self, policy: PackedCausalLM, samples: Sequence[Sample]) -> list[np.ndarray]:
        result: list[np.ndarray] = [np.zeros(sample.num_sampled, np.float32) for sample in samples]
        for row in self._rows(samples, list(range(len(samples)))):
            micro = self._micro_batch(samples, row, np.zeros(len(samples)))
            _, logprobs, _ = self._forward(micro, policy)
            if micro.part is not None:  # the sum over ranks has the other parts
                logprobs = logprobs.new_zeros(len(micro.part.tokens)).index_copy_(0, micro.part.places, logprobs)
            indices = [index for unit in row for index in unit.indices]
            ends = np.cumsum([len(result[index]) for index in indices], dtype=np.int64)
            for index, part in zip(indices, np.split(logprobs.cpu().numpy(), ends), strict=False):
                result[index][:] = part
        if self._world > 1 and samples:
            _sum_over_ranks(result, self._device)
        return result

    def _resident(self) -> Iterator[Tensor]:
        for policy in (self._policy, self._reference):
            if policy is not None:
                yield from policy.parameters()
                yield from policy.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters under their Hugging Face names, one at a time, tied ones once, in `compute_dtype`.

        At one rank a tensor may share memory with the learner: copy what must outlive the next `step`.
        """
        for name, parameter in self._published():
            # An engine may ask from within inference mode, in which torch 2.11 gathers no DTensor.
            with torch.inference_mode(False), torch.no_grad():
                # Cast first: what ranks send each other is then as small as what is published.
                weight = parameter.detach().to(self._compute_dtype)
                weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
            yield name, weight

    @torch.inference_mode(False)
    @torch.no_grad()
    def share(self, on_host: bool) -> SharedWeights | None:
        """See `RankLearner.share`. No parameter is whole anywhere but at its place."""
        named = self._policy.model.named_parameters()
        sizes = {name: parameter.numel() for name, parameter in named if not lora.is_adapter(name)}
        return self._shelf.fill(self._published(), self._compute_dtype, sizes, on_host=on_host)

    def _published(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters as engines know them; every rank takes all of them."""
        yield from lora.merged(self._policy.model, self._policy.model.named_parameters())

    def capture(self) -> fsdp_state.LearnerState:
        """See `Learner.capture`."""
        return fsdp_state.LearnerState(self._policy, self._optimizer, self._progress)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._progress = fsdp_state.load(folder, self._policy, self._optimizer)

    def save_hf(self, folder: Path) -> None:
        """See `Learner.save_hf`. Weights are written in `param_dtype`."""
        fsdp_state.save_hf(folder, self._policy, Path(self.config.model).expanduser(), self.config.lora)


def _measured(
    costs: MeasuredCosts, samples: Sequence[Sample], rows: list[list[Unit]], seconds: list[float]
) -> list[tuple[Measured, float]]:
    """The first micro-batch waits for the parameters of other ranks, the last for their gradients: these say little."""
    inner = list(zip(rows, seconds, strict=True))[1:-1]
    found = [(costs.measured(samples, row), time) for row, time in inner]
    return [(measured, time) for measured, time in found if measured is not None]


def _sum_over_ranks(arrays: list[np.ndarray], device: torch.device) -> None:
    """In place; each rank has zeros for what others computed."""
    flat = torch.from_numpy(np.concatenate(arrays)).to(device)
    dist.all_reduce(flat)
    ends = np.cumsum([len(array) for array in arrays])
    for array, part in zip(arrays, np.split(flat.cpu().numpy(), ends[:-1]), strict=True):
        array[:] = part
