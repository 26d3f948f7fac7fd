"""Log-probabilities of chosen tokens from hidden states, without ever holding the logits of all of them.

The logits of a chunk of tokens are computed, reduced to three numbers a token and dropped; the backward computes them
again. Only positions that predict a trained token should be passed in: the LM head then costs nothing for the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 2**30}
"""Float32 logits of one chunk: near the caches of a CPU, enough rows for full GEMM speed on a GPU."""


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float = 1.0, chunk_tokens: int | None = None
) -> tuple[Tensor, Tensor]:
    """log p(target) and the entropy of the distribution, float32 [num_tokens] each, at logits / temperature.

    `hidden` [num_tokens, hidden_size] at the position before each target, `weight` [vocab, hidden_size] of the LM
    head, `targets` [num_tokens] int64. Softmax is float32 whatever the weights are. Differentiable in both outputs.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to train, got {temperature}")
    if chunk_tokens is None:
        chunk_tokens = max(128, _CHUNK_BYTES.get(hidden.device.type, 2**28) // (4 * weight.shape[0]))
    logprobs, entropy = _ChunkedLogprobs.apply(hidden, weight, targets, temperature, chunk_tokens)
    return logprobs, entropy


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.t()).float()
    if temperature != 1.0:
        logits = logits.div_(temperature)
    return torch.log_softmax(logits, dim=-1)


class _ChunkedLogprobs(torch.autograd.Function):
    """d logp_t / d z_j = [j = t] - p_j and d H / d z_j = -p_j (log p_j + H), z = logits / temperature."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=torch.float32)
        entropy = torch.empty_like(logprobs)
        for start in range(0, len(hidden), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            log_p = _log_softmax(hidden[rows], weight, temperature)
            logprobs[rows] = log_p.gather(1, targets[rows, None]).squeeze(1)
            entropy[rows] = -(log_p.exp().mul_(log_p)).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, targets, entropy)
        ctx.temperature = temperature
        ctx.chunk_tokens = chunk_tokens
        # An output that the loss does not use then has no gradient at all, not one of zeros.
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_logprobs, grad_entropy = grads
        hidden, weight, targets, entropy = ctx.saved_tensors
        if grad_logprobs is None and grad_entropy is None:
            return None, None, None, None, None
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(hidden), ctx.chunk_tokens):
            rows = slice(start, start + ctx.chunk_tokens)
            log_p = _log_softmax(hidden[rows], weight, ctx.temperature)
            p = log_p.exp()
            # Minus the gradient of z, so far without the target's own term.
            factor: Tensor | float = (
                0.0 if grad_entropy is None else (log_p + entropy[rows, None]) * grad_entropy[rows, None]
            )
            if grad_logprobs is not None:
                factor = factor + grad_logprobs[rows, None]
            grad = p.mul_(factor)
            if grad_logprobs is not None:
                grad.scatter_add_(1, targets[rows, None], -grad_logprobs[rows, None])
            grad = grad.mul_(-1.0 / ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = grad @ weight
            grad_weight += (grad.t() @ hidden[rows]).float()
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None
