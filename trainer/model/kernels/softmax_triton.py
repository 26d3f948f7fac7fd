"""`softmax.statistics` and `softmax.gradient_` in Triton: one program per row, which reads the row once.

With a vocabulary of 150,000 a row is larger than the registers, so the softmax is online (arXiv 1805.02867).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOWEST = tl.constexpr(-1e30)
"""Value for missing logits instead of minus infinity, because it can be subtracted from itself."""
_BLOCK = 4096
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _load(base, columns, vocab, inverse_temperature):  # type: ignore[no-untyped-def]
    z = tl.load(base + columns, mask=columns < vocab, other=_LOWEST).to(tl.float32)
    return tl.maximum(z * inverse_temperature, _LOWEST)


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(  # type: ignore[no-untyped-def]
    logits,
    targets,
    logprob,
    entropy,
    lse,
    stride,
    inverse_temperature,
    vocab: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    columns = tl.arange(0, BLOCK)
    # Each lane has its own sums, so the loop has no reduction across lanes; they are merged at the end.
    largest = tl.full([BLOCK], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, 2 * BLOCK):
        # Two blocks share one change of the maximum, whose exponential costs as much as that of an element.
        first = _load(base, start + columns, vocab, inverse_temperature)
        second = _load(base, start + BLOCK + columns, vocab, inverse_temperature)
        new = tl.maximum(largest, tl.maximum(first, second))
        shift = largest - new
        scale = tl.exp(shift)
        p, q = tl.exp(first - new), tl.exp(second - new)
        # Relative to the running maximum; the sum of p * z itself would lose digits.
        weighted = (weighted + total * shift) * scale + p * (first - new) + q * (second - new)
        total = total * scale + p + q
        largest = new
    top = tl.max(largest, 0)
    shift = largest - top
    scale = tl.exp(shift)
    all_weighted = tl.sum((weighted + total * shift) * scale, 0)
    all_total = tl.sum(total * scale, 0)
    log_total = tl.log(all_total)
    target = tl.load(targets + row)
    z_target = tl.load(base + target).to(tl.float32) * inverse_temperature
    tl.store(logprob + row, z_target - top - log_total)
    tl.store(entropy + row, log_total - all_weighted / all_total)
    tl.store(lse + row, top + log_total)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(  # type: ignore[no-untyped-def]
    logits,
    targets,
    lse,
    entropy,
    grad_logprob,
    grad_entropy,
    stride,
    inverse_temperature,
    vocab: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    target = tl.load(targets + row)
    from_logprob = tl.load(grad_logprob + row)
    log_p = tl.load(base + columns, mask=inside, other=0.0).to(tl.float32) * inverse_temperature - tl.load(lse + row)
    factor = from_logprob
    if WITH_ENTROPY:
        factor += tl.load(grad_entropy + row) * (log_p + tl.load(entropy + row))
    grad = tl.where(columns == target, from_logprob, 0.0) - tl.exp(log_p) * factor
    grad = grad * inverse_temperature
    tl.store(base + columns, grad.to(logits.dtype.element_ty), mask=inside)


def statistics(logits: Tensor, targets: Tensor, inverse_temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return (logprob, entropy, lse) of contiguous rows."""
    assert logits.stride(1) == 1
    rows, vocab = logits.shape
    logprob, entropy, lse = torch.empty(3, rows, dtype=torch.float32, device=logits.device).unbind()
    if rows:
        _statistics[(rows,)](
            logits,
            targets,
            logprob,
            entropy,
            lse,
            logits.stride(0),
            inverse_temperature,
            vocab=vocab,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
    return logprob, entropy, lse


def gradient_(
    logits: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    inverse_temperature: float,
) -> Tensor:
    """Overwrite the logits with their gradient; each block of a row is one program."""
    assert logits.stride(1) == 1
    rows, vocab = logits.shape
    if rows:
        _gradient[(rows, triton.cdiv(vocab, _BLOCK))](
            logits,
            targets,
            lse,
            entropy,
            grad_logprob.contiguous(),
            None if grad_entropy is None else grad_entropy.contiguous(),
            logits.stride(0),
            inverse_temperature,
            vocab=vocab,
            WITH_ENTROPY=grad_entropy is not None,
            BLOCK=_BLOCK,
            num_warps=_WARPS,
        )
    return logits
