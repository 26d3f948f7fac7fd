"""`MegatronLearner`: the learner on megatron-core."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoConfig

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.cluster.process_group import data_parallel_mesh
from agentloop.trainer.learner import skipped
from agentloop.trainer.learner.base_learner import IDLE, BaseLearner
from agentloop.trainer.learner.lr_schedule import learning_rate
from agentloop.trainer.learner.megatron import state
from agentloop.trainer.learner.megatron.head import Head
from agentloop.trainer.learner.megatron.micro import RankMicroBatch
from agentloop.trainer.learner.megatron.model import Stage, check_supported, transformer_config
from agentloop.trainer.learner.megatron.on_cpu import on_device
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.megatron.training import Training
from agentloop.trainer.learner.megatron.weights import Weights
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.row_layout import Unit
from agentloop.trainer.planning import CostModel, ModelFlops
from agentloop.trainer.sizing.layouts import Layout, check
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import SharedWeights

_log = logging.getLogger(__name__)

Rows = list[list[Unit]]


class MegatronLearner(BaseLearner):
    """A `RankLearner`. Every rank makes one, and calls every method with the same arguments."""

    def __init__(self, config: LearnerConfig) -> None:
        """Load this rank's part of the model. Raises `UserError` where the configuration, the layout or the model
        cannot be used, the first two before anything is loaded."""
        super().__init__(config)
        if config.param_dtype != "float32":
            raise UserError("learner.backend=megatron changes parameters in float32. Leave learner.param_dtype out.")
        hf_config = _hf_config(Path(config.model).expanduser())
        shape = ModelShape.from_config(hf_config)
        layout = Layout.of(config, data_parallel_mesh(self._device).size())
        check(layout, shape)
        check_supported(hf_config)
        self._compute_dtype: torch.dtype = getattr(torch, config.compute_dtype)
        self._kernel = choose(config.attention, self._device, self._compute_dtype)
        self._ranks = Ranks.of(layout, self._device)
        self._rank, self._num_ranks = self._ranks.data_rank, self._ranks.data
        self._share = bool(config.share_prefixes) and layout.context == 1
        # Ranks that share experts meet in every layer of every micro-batch.
        self._once = layout.expert == 1
        self._vision_passes = 0
        has_bias = hf_config.model_type == "qwen2" or bool(getattr(hf_config, "attention_bias", False))
        self._weights = Weights(shape, self._ranks, qkv_bias=has_bias)
        with on_device(self._device):
            self._model, self._shapes = self._load(hf_config, layout, Path(config.model).expanduser())
            self._training = Training(self._model, config)
            self._reference: Stage | None = None
            if config.needs_reference:
                folder = Path(config.reference or config.model).expanduser()
                self._reference, _ = self._load(_hf_config(folder), layout, folder)
                self._reference.requires_grad_(False)
        self._shelf = ShardedShelf()
        self._cost = CostModel.from_config(hf_config)
        self._flops = ModelFlops.from_config(hf_config)

    def _load(self, hf_config: Any, layout: Layout, folder: Path) -> tuple[Stage, dict[str, tuple[int, ...]]]:
        model = Stage(hf_config, transformer_config(hf_config, layout, self._compute_dtype), self._ranks)
        model = model.to(self._device)
        self._weights.mark(model)
        return model, self._weights.load(folder, model)

    def _update(self, samples: Sequence[Sample], metrics: StepMetrics, *, is_first: bool) -> None:
        weights = self._objective.weights([sample.num_sampled for sample in samples])
        losses: list[Tensor] = []
        with on_device(self._device), metrics.phase("forward_backward"):
            rows = self._rows(samples, self._with_gradient(samples), metrics)
            head = Head(self._model, self._ranks, self.config.temperature)
            visit = partial(self._loss_of, head, metrics, losses, is_first)
            self._run(self._training.wrapped, samples, rows, weights, visit)
            if self._ranks.reports and self._ranks.context_rank == 0:
                for row in rows:
                    metrics.add_work(self._flops_of(samples, row))
        with on_device(self._device), metrics.phase("optimizer"):
            loss = torch.stack(losses).sum() if losses else torch.zeros((), device=self._device)
            norm = self._apply(loss if self._counts else torch.zeros_like(loss), metrics)
        if norm is not None and losses:
            indices = [[index for unit in row for index in unit.indices] for row in rows]
            _log.warning("%s", skipped.describe(samples, indices, torch.stack(losses).tolist(), norm))

    @property
    def _counts(self) -> bool:
        """This rank's losses and metrics are no other's."""
        return self._ranks.reports and (self._objective.is_tokenwise or self._ranks.context_rank == 0)

    def _run(
        self,
        pieces: Sequence[nn.Module],
        samples: Sequence[Sample],
        rows: Rows,
        weights: np.ndarray,
        visit: Callable[[Tensor, RankMicroBatch, list[Unit]], Tensor],
        *,
        forward_only: bool = False,
    ) -> None:
        """All micro-batches through all stages. On the last, `visit` is given hidden states and says the loss."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if len(pieces) > 1:  # then micro-batches go round in groups of as many as there are stages
            rows = rows + [[]] * (-len(rows) % self._ranks.pipeline)

        def forward(data: Iterator[list[Unit]], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
            row = next(data)
            micro = self._micro(samples, row, weights)

            def loss_of(hidden: Tensor) -> tuple[Tensor, Tensor, None]:
                # The count of tokens is Megatron's to divide by; weights of tokens have done that.
                return visit(hidden, micro, row), torch.ones((), dtype=torch.int, device=self._device), None

            return model(micro.input_ids, micro.positions, micro.row), loss_of

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(rows) for _ in pieces],
            model=list(pieces),
            num_microbatches=len(rows),
            seq_length=self.config.token_budget,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _micro(self, samples: Sequence[Sample], row: list[Unit], weights: np.ndarray) -> RankMicroBatch:
        """`weights` are of all samples. Without units, the idle one."""
        indices = [index for unit in row for index in unit.indices]
        chosen = [samples[index] for index in indices] or [IDLE]
        units = row or [Unit([0], 0, len(IDLE))]
        return RankMicroBatch.of(
            chosen, weights[indices] if row else [0.0], units, self._device, self._ranks, self._kernel
        )

    def _loss_of(
        self,
        head: Head,
        metrics: StepMetrics,
        losses: list[Tensor],
        is_first: bool,
        hidden: Tensor,
        micro: RankMicroBatch,
        row: list[Unit],
    ) -> Tensor:
        loss, logprobs, tokens, token_metrics = head.loss(hidden, micro, self._objective)
        losses.append(loss.detach())
        if self._counts and row:
            metrics.add_tokens(micro.num_tokens if self._ranks.context_rank == 0 else 0, token_metrics)
            if self._objective.loss.on_policy and is_first and len(logprobs):
                metrics.add_difference((logprobs - tokens.rollout_logprobs).abs())
        return loss

    def _apply(self, loss: Tensor, metrics: StepMetrics) -> float | None:
        """Clip and step, or drop an update whose loss or gradient is not finite: then the norm of that gradient."""
        progress = self._progress
        dist.all_reduce(loss)
        lr = learning_rate(self.config, progress.updates + progress.updates_skipped)
        norm = self._training.norm()
        is_finite = bool(np.isfinite([loss.item(), norm]).all())
        if is_finite:
            self._training.step(lr)
            progress.updates += 1
        else:
            progress.updates_skipped += 1
        self._training.clear()
        metrics.add_update({"loss": loss.item(), "grad_norm": norm, "lr": lr}, skipped=not is_finite)
        return None if is_finite else norm

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, float32 [num_sampled]."""
        return self._logprobs_of(self._model, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """See `Learner.reference_logprobs`."""
        if self._reference is None:
            raise UserError("The learner has no reference model. Set learner.reference, or learner.kl_coef above 0.")
        return self._logprobs_of(self._reference, samples)

    @torch.no_grad()
    def _logprobs_of(self, model: Stage, samples: Sequence[Sample]) -> list[np.ndarray]:
        flat = torch.zeros(sum(sample.num_sampled for sample in samples), device=self._device)
        if not samples:
            return []
        ends = np.cumsum([sample.num_sampled for sample in samples])
        places = [np.arange(end - sample.num_sampled, end) for end, sample in zip(ends, samples, strict=True)]
        head = Head(model, self._ranks, self.config.temperature)

        def visit(hidden: Tensor, micro: RankMicroBatch, row: list[Unit]) -> Tensor:
            logprobs, _ = head.logprobs(hidden, micro)
            if self._ranks.reports and row:
                where = np.concatenate([places[index] for unit in row for index in unit.indices])[micro.own]
                flat[torch.from_numpy(where).to(self._device)] = logprobs
            return logprobs.sum()

        with on_device(self._device):
            rows = self._rows(samples, list(range(len(samples))))
            self._run([*model], samples, rows, np.zeros(len(samples)), visit, forward_only=True)
        dist.all_reduce(flat)
        return [part.astype(np.float32) for part in np.split(flat.cpu().numpy(), ends[:-1])]

    def _resident(self) -> Iterator[Tensor]:
        yield from self._training.tensors()
        for model in (self._model, self._reference):
            if model is not None:
                yield from model.parameters()
                yield from model.buffers()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters under their Hugging Face names, a layer at a time, tied ones once, in `compute_dtype`."""
        return self._weights.gathered(self._model, self._shapes)

    @torch.inference_mode(False)
    @torch.no_grad()
    def share(self, on_host: bool) -> SharedWeights | None:
        """See `RankLearner.share`. A layer at a time is whole on every rank."""
        sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        return self._shelf.fill(self.weights(), self._compute_dtype, sizes, on_host=on_host)

    def capture(self) -> state.MegatronState:
        """See `Learner.capture`."""
        return state.MegatronState(self._model, self._training, self._progress, self._ranks)

    def load(self, folder: Path) -> None:
        """See `Learner.load`. The ranks must be divided as they were when it was saved."""
        self._progress = state.load(folder, self._model, self._training, self._ranks)

    def save_hf(self, folder: Path) -> None:
        """See `Learner.save_hf`. Weights are written in `compute_dtype`."""
        state.save_hf(folder, self.weights(), Path(self.config.model).expanduser())


def _hf_config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not a model folder: it has no config.json. Set learner.model to a folder in Hugging Face "
            "format (config.json, *.safetensors, tokenizer files)."
        )
    return copy(AutoConfig.from_pretrained(folder))
