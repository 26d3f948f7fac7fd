"""Gradient buffers and distributed optimizer of megatron-core for a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch import Tensor, nn

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.learner.megatron.model import Stage


class Training:
    """Gradients and optimizer of a model. Ranks that hold the same weights shard AdamW's float32 parameters."""

    def __init__(self, model: Stage, config: LearnerConfig) -> None:
        self._clip = config.grad_clip
        buffers = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self.wrapped: list[Any] = [DistributedDataParallel(model.config, buffers, piece) for piece in model]
        model.config.finalize_model_grads_func = _finalize
        is_bf16 = model.config.params_dtype == torch.bfloat16
        self._optimizer: Any = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                adam_beta1=config.betas[0],
                adam_beta2=config.betas[1],
                adam_eps=config.eps,
                weight_decay=config.weight_decay,
                clip_grad=0.0 if config.grad_clip is None else config.grad_clip,
                bf16=is_bf16,
                params_dtype=model.config.params_dtype,
                use_distributed_optimizer=True,
            ),
            self.wrapped,
            use_gloo_process_groups=False,
        )
        for group in self._optimizer.param_groups:
            group["weight_decay"] = config.weight_decay

    def norm(self) -> float:
        """Return the norm of the whole gradient before clipping."""
        self._optimizer.prepare_grads()
        return float(self._optimizer.get_grad_norm())

    def step(self, lr: float) -> None:
        """Clip the gradient and update the parameters on all ranks."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()

    def clear(self) -> None:
        """Clear gradients for the next mini-batch."""
        for piece in self.wrapped:
            piece.zero_grad_buffer()
        self._optimizer.zero_grad()

    def tensors(self) -> Iterator[Tensor]:
        """Yield the buffers of parameters and gradients, the optimizer's parameters, and its state."""
        for piece in self.wrapped:
            for buffer in (*piece.buffers, *piece.expert_parallel_buffers):
                yield from (data for data in (buffer.param_data, buffer.grad_data) if data is not None)
        for optimizer in self.inner:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    @property
    def inner(self) -> list[torch.optim.Optimizer]:
        """Optimizers of this rank's shards: one for dense parameters, one for experts."""
        chained = getattr(self._optimizer, "chained_optimizers", [self._optimizer])
        return [part.optimizer for part in chained if part.optimizer is not None]


def _finalize(models: list[nn.Module], num_tokens: Any = None, **options: Any) -> None:
    """Sum gradients over ranks without averaging, because token weights are normalized over the whole mini-batch."""
    finalize_model_grads(models, None, **options)
