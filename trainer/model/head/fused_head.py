"""Loss and gradient of the LM head in one pass: three matrix products, without keeping or recomputing logits.

In the GRPO family the loss of a token depends on its own log-probability and entropy, and on numbers known before the
forward: advantage, old log-probability, weight. So the gradient of a chunk's logits follows directly from its
log-probabilities, and a chunk is finished before the next one starts. If the loss is that of whole trajectories (gspo,
gmpo), chunks consist of whole trajectories. Only a trajectory that is longer than a chunk has its logits computed
twice, except for its last chunk. If ranks divide trajectories, use `logprobs.token_logprobs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentloop.trainer.model.head.head_chunks import HeadGradient, Units, groups
from agentloop.trainer.model.kernels import softmax
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.kernels.softmax import Statistics, Vocabulary

ChunkLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""(logprobs, entropy, rows) -> the loss of the tokens `rows`, a differentiable scalar and a sum over units."""


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk_loss: ChunkLoss,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    units: Units | None = None,
    vocabulary: Vocabulary = softmax,
    allowed: AllowedTokens | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, a float32 scalar, and the detached log-probabilities and entropies, float32 [num_tokens].

    The arguments are those of `token_logprobs`. `chunk_loss` is called for chunk after chunk and must be a sum over
    units: its gradient by a token's values may depend only on tokens of the same unit. `units` are the sizes of units
    of consecutive tokens, which are never split; None: each token is a unit. If `weight` is a part of the vocabulary,
    `vocabulary` combines the parts, and the gradient of `hidden` is that of this part. Raises `ValueError` unless the
    temperature is above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to train, got {temperature}")
    loss, logprobs, entropy = _FusedHead.apply(
        hidden,
        weight,
        targets,
        chunk_loss,
        1.0 / temperature,
        groups(len(hidden), weight, chunk_tokens, units),
        vocabulary,
        allowed,
    )
    return loss, logprobs, entropy


class _FusedHead(torch.autograd.Function):
    """Computes both gradients in the forward; the backward multiplies them by that of the loss in place, once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_loss: ChunkLoss,
        inverse_temperature: float,
        parts: list[list[slice]],
        vocabulary: Vocabulary,
        allowed: AllowedTokens | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_hidden, of_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        gradient = HeadGradient(hidden, weight, sum(map(len, parts)), of_hidden=of_hidden, of_weight=of_weight)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        logprobs, entropy = torch.empty(2, len(hidden), dtype=torch.float32, device=hidden.device).unbind()
        for group in parts:
            found: list[Statistics] = []
            logits: Tensor | None = None
            for rows in group:
                del logits  # frees them before the next chunk
                logits = hidden[rows] @ weight.t()
                masks = None if allowed is None else allowed.rows(rows)
                found.append(vocabulary.statistics(logits, targets[rows], inverse_temperature, masks))
                logprobs[rows], entropy[rows] = found[-1].logprob, found[-1].entropy
            whole = slice(group[0].start, group[-1].stop)
            part, of_logprob, of_entropy = _differentiate(chunk_loss, logprobs[whole], entropy[whole], whole)
            loss += part
            if not (of_hidden or of_weight):
                continue
            for rows, known in zip(reversed(group), reversed(found), strict=True):
                logits = hidden[rows] @ weight.t() if logits is None else logits
                here = slice(rows.start - whole.start, rows.stop - whole.start)
                its = None if of_entropy is None else of_entropy[here]
                masks = None if allowed is None else allowed.rows(rows)
                vocabulary.gradient_(logits, targets[rows], known, of_logprob[here], its, inverse_temperature, masks)
                gradient.add(rows, logits)
                logits = None
        ctx.save_for_backward(gradient.hidden, gradient.weight)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(logprobs, entropy)
        return loss, logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_loss: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None, None]:
        of_hidden, of_weight = ctx.saved_tensors
        if of_hidden is not None:
            of_hidden = of_hidden * grad_loss.to(of_hidden.dtype)
        if of_weight is not None:
            # This takes gigabytes, so multiply in place, or in one pass with the conversion.
            out = (
                of_weight
                if of_weight.dtype == ctx.weight_dtype
                else torch.empty_like(of_weight, dtype=ctx.weight_dtype)
            )
            of_weight = torch.mul(of_weight, grad_loss, out=out)
        return of_hidden, of_weight, None, None, None, None, None, None


def _differentiate(
    chunk_loss: ChunkLoss, logprob: Tensor, entropy: Tensor, rows: slice
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the loss of a chunk and its derivatives; that of the entropy is None if the loss does not use it."""
    with torch.enable_grad():
        inputs = logprob.detach().requires_grad_(), entropy.detach().requires_grad_()
        loss = chunk_loss(*inputs, rows)
        if not loss.requires_grad:
            return loss.float(), torch.zeros_like(logprob), None
        grad_logprob, grad_entropy = torch.autograd.grad(loss, inputs, allow_unused=True)
    if grad_logprob is None:
        grad_logprob = torch.zeros_like(logprob)
    return loss.detach().float(), grad_logprob, grad_entropy
