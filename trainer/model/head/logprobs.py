"""Log-probabilities of target tokens from hidden states, without holding the logits of all tokens.

Pass only positions that predict a trained token, so that the LM head costs nothing for the others. If the loss is a sum
over tokens or trajectories, `fused_head` needs one matrix product less.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentloop.trainer.model.head.head_chunks import HeadGradient, chunks
from agentloop.trainer.model.kernels import softmax
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.kernels.softmax import Statistics, Vocabulary


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    vocabulary: Vocabulary = softmax,
    allowed: AllowedTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of the distribution at logits / temperature, float32 [num_tokens] each.

    `hidden` [num_tokens, hidden_size] at the position before each target, `weight` [vocab, hidden_size] of the LM
    head, `targets` [num_tokens] int64. The softmax is always float32. Both outputs are differentiable; the backward
    recomputes the logits. `vocabulary` is as in `fused_head.head_loss`. The distribution of a constrained token is
    that among the `allowed` ones. Raises `ValueError` unless the temperature is above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to train, got {temperature}")
    logprobs, entropy = _ChunkedLogprobs.apply(
        hidden, weight, targets, 1.0 / temperature, chunk_tokens, vocabulary, allowed
    )
    return logprobs, entropy


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        inverse_temperature: float,
        chunk_tokens: int | None,
        vocabulary: Vocabulary,
        allowed: AllowedTokens | None,
    ) -> tuple[Tensor, Tensor]:
        found = Statistics(*torch.empty(3, len(hidden), dtype=torch.float32, device=hidden.device).unbind())
        for rows in chunks(len(hidden), weight, chunk_tokens):
            masks = None if allowed is None else allowed.rows(rows)
            parts = vocabulary.statistics(hidden[rows] @ weight.t(), targets[rows], inverse_temperature, masks)
            for whole, part in zip(found, parts, strict=True):
                whole[rows] = part
        ctx.save_for_backward(hidden, weight, targets, *found)
        ctx.options = inverse_temperature, chunk_tokens, vocabulary, allowed
        # An output that the loss does not use has the gradient None instead of zeros.
        ctx.set_materialize_grads(False)
        return found.logprob.clone(), found.entropy.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None]:
        grad_logprob, grad_entropy = grads
        hidden, weight, targets, *found = ctx.saved_tensors
        if grad_logprob is None and grad_entropy is None:
            return None, None, None, None, None, None, None
        if grad_logprob is None:
            grad_logprob = torch.zeros_like(found[0])
        inverse_temperature, chunk_tokens, vocabulary, allowed = ctx.options
        of_hidden, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        parts = chunks(len(hidden), weight, chunk_tokens)
        gradient = HeadGradient(hidden, weight, len(parts), of_hidden=of_hidden, of_weight=of_weight)
        for rows in parts:
            logits = vocabulary.gradient_(
                hidden[rows] @ weight.t(),
                targets[rows],
                Statistics(*(part[rows] for part in found)),
                grad_logprob[rows],
                None if grad_entropy is None else grad_entropy[rows],
                inverse_temperature,
                None if allowed is None else allowed.rows(rows),
            )
            gradient.add(rows, logits)
        total = None if gradient.weight is None else gradient.weight.to(weight.dtype)
        return gradient.hidden, total, None, None, None, None, None
