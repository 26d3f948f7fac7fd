"""The learner on megatron-core."""

from __future__ import annotations

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
from agentloop.trainer.learner.base_learner import BaseLearner
from agentloop.trainer.learner.megatron import state
from agentloop.trainer.learner.megatron.head import Head
from agentloop.trainer.learner.megatron.micro import RankMicroBatch
from agentloop.trainer.learner.megatron.model import Stage, transformer_config
from agentloop.trainer.learner.megatron.on_cpu import on_device
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.megatron.training import Training
from agentloop.trainer.learner.megatron.weights import Weights
from agentloop.trainer.learner.metrics.step_metrics import StepMetrics
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.row_layout import Unit
from agentloop.trainer.planning import CostModel, ModelFlops
from agentloop.trainer.sizing.layouts import Layout, check
from agentloop.trainer.sizing.megatron_models import check_supported
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.weights.sharded import ShardedShelf
from agentloop.weights.shelf import SharedWeights

Rows = list[list[Unit]]


class MegatronLearner(BaseLearner):
    """A `RankLearner`. Every rank creates one, and calls every method with the same arguments."""

    def __init__(self, config: LearnerConfig) -> None:
        """Load this rank's part of the model.

        Raises `UserError` if the configuration, the layout or the model is unusable; before loading, except for errors
        in the weights.
        """
        super().__init__(config)
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
        # Ranks that share experts exchange tokens in every layer of every micro-batch.
        self._once = layout.expert == 1
        self.vision_passes = 0
        has_bias = hf_config.model_type == "qwen2" or bool(getattr(hf_config, "attention_bias", False))
        self._weights = Weights(shape, self._ranks, qkv_bias=has_bias)
        with on_device(self._device):
            self.model, self._shapes = self._load(hf_config, layout, Path(config.model).expanduser())
            self._training = Training(self.model, config)
            self._reference: Stage | None = None
            if config.needs_reference:
                folder = Path(config.reference or config.model).expanduser()
                key = "learner.reference" if config.reference else "model"
                self._reference, _ = self._load(_hf_config(folder, key), layout, folder)
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
        weights = self._objective.weights(samples)
        losses: list[Tensor] = []
        with on_device(self._device), metrics.phase("forward_backward"):
            rows = self._rows(samples, self._with_gradient(samples), metrics)
            head = Head(self.model, self._ranks, self.config.temperature)
            visit = partial(self._loss_of, head, metrics, losses, is_first)
            self._run(self._training.wrapped, samples, rows, weights, visit)
            if self._ranks.reports and self._ranks.context_rank == 0:
                for row in rows:
                    metrics.add_work(self.flops_of(samples, row))
        with on_device(self._device):
            self._finish_update(samples, rows, losses, metrics, counts=self._counts)

    @property
    def _counts(self) -> bool:
        """Whether this rank, among those with equal losses and metrics, reports them."""
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
        """Run all micro-batches through all stages. On the last stage `visit` maps hidden states to the loss."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if len(pieces) > 1:  # interleaved stages need a multiple of the number of stages
            rows = rows + [[]] * (-len(rows) % self._ranks.pipeline)

        def forward(data: Iterator[list[Unit]], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
            row = next(data)
            micro = self._micro(samples, row, weights)

            def loss_of(hidden: Tensor) -> tuple[Tensor, Tensor, None]:
                # Megatron divides by the number of tokens, which the token weights have already done.
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
        """Return the tensors of a row; `weights` has the weights of all samples."""
        chosen, own_weights, units = self._row_samples(samples, row, weights)
        return RankMicroBatch.of(chosen, own_weights, units, self._device, self._ranks, self._kernel, self._masks)

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

    def _clip(self) -> float:
        return self._training.norm()

    def _step_optimizer(self, lr: float) -> None:
        self._training.step(lr)

    def _clear_gradients(self) -> None:
        self._training.clear()

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Return the log-probabilities of sampled tokens under the current weights, float32 [num_sampled] each."""
        return self._logprobs_of(self.model, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
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
        for model in (self.model, self._reference):
            if model is not None:
                yield from model.parameters()
                yield from model.buffers()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield unsharded parameters in `compute_dtype` under their Hugging Face names, a layer at a time."""
        return self._weights.gathered(self.model, self._shapes)

    @torch.inference_mode(False)
    @torch.no_grad()
    def share(self, on_host: bool) -> SharedWeights | None:
        """Put the weights into shared memory as in `RankLearner.share`, unsharding one layer at a time on all ranks."""
        sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        return self._shelf.fill(self.weights(), self._compute_dtype, sizes, on_host=on_host)

    def capture(self) -> state.MegatronState:
        return state.MegatronState(self.model, self._training, self._progress, self._ranks)

    def load(self, folder: Path) -> None:
        """Restore a saved state; the layout of ranks must be the one that saved it."""
        self._progress = state.load(folder, self.model, self._training, self._ranks)

    def save_hf(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, with weights in `save_dtype`."""
        state.save_hf(folder, self.weights(), Path(self.config.model).expanduser(), self.config)


def _hf_config(folder: Path, key: str = "model") -> Any:
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not a model folder: it has no config.json. Set {key} to a folder in Hugging Face "
            "format (config.json, *.safetensors, tokenizer files)."
        )
    return copy(AutoConfig.from_pretrained(folder))
