"""The default learner: a transformers model on torch FSDP2, with packed micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentloop.engines.base import Engine
from agentloop.errors import UserError
from agentloop.trainer import losses
from agentloop.trainer.attention import needs_padding
from agentloop.trainer.backends import fsdp_state
from agentloop.trainer.backends.micro_batch import MicroBatch
from agentloop.trainer.backends.policy import Policy, load_policy
from agentloop.trainer.backends.process_group import data_parallel_mesh, pick_device
from agentloop.trainer.backends.step_metrics import StepMetrics
from agentloop.trainer.batch import Sample, TrainBatch
from agentloop.trainer.corrections import truncated_importance_weights
from agentloop.trainer.learner import LearnerConfig, learning_rate
from agentloop.trainer.planning import CostModel, plan

_IDLE = Sample(
    token_ids=np.zeros(2, np.int32),
    loss_mask=np.array([False, True]),
    logprobs=np.zeros(2, np.float32),
    versions=np.full(2, -1, np.int32),
    advantage=0.0,
)
"""What a rank without work in a micro-batch passes with weight 0: collectives need every rank."""


class FsdpLearner:
    """A `Learner`. Every rank makes one, and calls every method with the same arguments."""

    def __init__(self, config: LearnerConfig) -> None:
        """Load the model and shard it. Raises `UserError` where the configuration or the model cannot be used."""
        self.config = config
        self._loss = losses.get(config.loss)
        self._options = losses.parse_options(self._loss, config.loss_options)
        if config.lr_schedule != "constant" and config.total_updates is None:
            raise UserError(f"learner.lr_schedule={config.lr_schedule} needs learner.total_updates.")
        self._device = pick_device(config.device)
        mesh = data_parallel_mesh(self._device)
        self._rank, self._num_ranks = mesh.get_rank(), mesh.size()
        policy = load_policy(
            Path(config.model).expanduser(),
            getattr(torch, config.param_dtype),
            gradient_checkpointing=config.gradient_checkpointing,
        )
        self._compute_dtype: torch.dtype = getattr(torch, config.compute_dtype)
        self._padded = needs_padding(self._device, self._compute_dtype)
        self._policy = policy.to(self._device)
        precision = MixedPrecisionPolicy(param_dtype=self._compute_dtype, reduce_dtype=torch.float32)
        for module in [*policy.layers(), policy]:
            fully_shard(module, mesh=mesh, mp_policy=precision)
            assert isinstance(module, FSDPModule)
            # Token weights are of the whole mini-batch: gradients of ranks are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self._optimizer = torch.optim.AdamW(
            self._policy.parameters(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._cost = CostModel.from_config(self._policy.model.config)
        self._progress = fsdp_state.Progress()

    @property
    def policy(self) -> Policy:
        """The sharded module, for reading."""
        return self._policy

    @property
    def progress(self) -> fsdp_state.Progress:
        """How far training is."""
        return self._progress

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """See `Learner.step`. An empty batch changes nothing but the number of steps."""
        metrics = StepMetrics(self._device)
        samples = list(batch.samples)
        old: list[np.ndarray] | None = None
        if self.config.importance_cap is not None and self.config.mini_batches > 1:
            with metrics.phase("old_logprobs"):
                old = self.logprobs(samples)
        for number, indices in enumerate(self._mini_batches(len(samples))):
            self._update(
                [samples[index] for index in indices],
                None if old is None else [old[index] for index in indices],
                metrics,
                is_first=number == 0,
            )
        self._progress.steps += 1
        result = metrics.result()
        result["num_tokens"] = float(batch.num_tokens)
        result["num_sampled"] = float(batch.num_sampled)
        result["num_trajectories"] = float(len(samples))
        result["updates_skipped_total"] = float(self._progress.updates_skipped)
        return result

    def _mini_batches(self, count: int) -> list[list[int]]:
        """Indices of the samples of each update; no empty ones."""
        if self.config.mini_batches == 1:
            return [list(range(count))] if count else []
        order = np.random.default_rng((self.config.seed, self._progress.steps)).permutation(count)
        return [part.tolist() for part in np.array_split(order, self.config.mini_batches) if len(part)]

    def _update(
        self, samples: Sequence[Sample], old: list[np.ndarray] | None, metrics: StepMetrics, *, is_first: bool
    ) -> None:
        """One optimizer step on a mini-batch."""
        config = self.config
        weights = losses.token_weights(
            [sample.num_sampled for sample in samples], config.aggregation, config.aggregation_norm
        )
        loss = torch.zeros((), device=self._device)
        with metrics.phase("forward_backward"):
            for rows in self._rows(samples, self._with_gradient(samples)):
                loss += self._backward(
                    MicroBatch.of(
                        [samples[index] for index in rows] or [_IDLE],
                        weights[rows] if rows else [0.0],
                        self._device,
                        old_logprobs=None if old is None or not rows else [old[index] for index in rows],
                        padded=self._padded,
                    ),
                    metrics if rows else None,
                    is_first=is_first,
                )
        with metrics.phase("optimizer"):
            self._apply(loss, metrics)

    def _with_gradient(self, samples: Sequence[Sample]) -> list[int]:
        """The samples to compute. Where none has an advantage all are, so that the policy's metrics stay known."""
        everything = list(range(len(samples)))
        if not (self.config.skip_zero_advantage and self._loss.on_policy) or self.config.entropy_bonus > 0:
            return everything
        return [index for index in everything if samples[index].advantage != 0.0] or everything

    def _rows(self, samples: Sequence[Sample], indices: list[int]) -> list[list[int]]:
        """This rank's micro-batches, as indices of samples."""
        lengths = [len(samples[index]) for index in indices]
        planned = plan(lengths, ranks=self._num_ranks, token_budget=self.config.token_budget, cost=self._cost)
        return [[indices[place] for place in row] for row in planned.ranks[self._rank]]

    def _forward(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        return self._policy(micro.input_ids, micro.row, micro.positions, micro.targets, self.config.temperature)

    def _backward(self, micro: MicroBatch, metrics: StepMetrics | None, *, is_first: bool) -> Tensor:
        """Add the gradient of a micro-batch; returns its share of the loss."""
        config = self.config
        logprobs, entropy = self._forward(micro)
        old = micro.rollout_logprobs if micro.old_logprobs is None else micro.old_logprobs
        correction: Tensor | None = None
        if self._loss.on_policy and config.importance_cap is not None:
            if micro.old_logprobs is None:
                old = logprobs.detach()  # the only update of the batch: these are the weights that sampled
            correction = truncated_importance_weights(old, micro.rollout_logprobs, config.importance_cap)
        token_loss, token_metrics = self._loss.function(logprobs, old, micro.advantages, self._options)
        if correction is not None:
            token_loss = token_loss * correction
            token_metrics["importance_weight"] = correction
        if config.entropy_bonus > 0:
            token_loss = token_loss - config.entropy_bonus * entropy
        loss = (token_loss * micro.weights).sum()
        loss.backward()
        if metrics is not None:
            metrics.add_tokens(micro.input_ids.numel(), {"entropy": entropy.detach(), **token_metrics})
            if self._loss.on_policy and is_first:
                metrics.add_difference((logprobs.detach() - micro.rollout_logprobs).abs())
        return loss.detach()

    def _apply(self, loss: Tensor, metrics: StepMetrics) -> None:
        """Clip and step, or drop an update whose loss or gradient is not finite."""
        config, progress = self.config, self._progress
        parameters = [parameter for parameter in self._policy.parameters() if parameter.grad is not None]
        limit = float("inf") if config.grad_clip is None else config.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self._num_ranks > 1:
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

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, float32 [num_sampled]."""
        result: list[np.ndarray] = [np.zeros(sample.num_sampled, np.float32) for sample in samples]
        for rows in self._rows(samples, list(range(len(samples)))):
            chosen = [samples[index] for index in rows] or [_IDLE]
            logprobs, _ = self._forward(MicroBatch.of(chosen, [0.0] * len(chosen), self._device, padded=self._padded))
            ends = np.cumsum([sample.num_sampled for sample in chosen])
            for index, part in zip(rows, np.split(logprobs.cpu().numpy(), ends[:-1]), strict=False):
                result[index][:] = part
        # Without a backward nothing else would put the root's parameters back into their shards.
        assert isinstance(self._policy, FSDPModule)
        self._policy.reshard()
        if self._num_ranks > 1 and samples:
            _sum_over_ranks(result, self._device)
        return result

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters under their Hugging Face names, one at a time, tied ones once, in `compute_dtype`.

        At one rank a tensor may share memory with the learner: copy what must outlive the next `step`.
        """
        for name, parameter in self._policy.model.named_parameters():
            full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield name, full.detach().to(self._compute_dtype)

    async def publish(self, engine: Engine, version: int) -> None:
        """See `Learner.publish`."""
        await engine.update_weights(self.weights(), version)

    def save(self, folder: Path) -> None:
        """See `Learner.save`."""
        fsdp_state.save(folder, self._policy, self._optimizer, self._progress)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._progress = fsdp_state.load(folder, self._policy, self._optimizer)

    def save_hf(self, folder: Path) -> None:
        """See `Learner.save_hf`. Weights are written in `param_dtype`."""
        fsdp_state.save_hf(folder, self._policy, Path(self.config.model).expanduser())


def _sum_over_ranks(arrays: list[np.ndarray], device: torch.device) -> None:
    """In place; each rank has zeros for what others computed."""
    flat = torch.from_numpy(np.concatenate(arrays)).to(device)
    dist.all_reduce(flat)
    ends = np.cumsum([len(array) for array in arrays])
    for array, part in zip(arrays, np.split(flat.cpu().numpy(), ends[:-1]), strict=True):
        array[:] = part
