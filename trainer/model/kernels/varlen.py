"""FlashAttention over packed rows with separate forward and backward, so that partial attentions can be merged between.

A kernel gets query [n, heads, d], key and value [m, kv_heads, d] and the segments of each. It returns the output [n,
heads, d] and the log-sum-exp of the scores, float32 [heads, n]. Its backward gets the merged output and log-sum-exp, so
the gradient of a part is that of the whole attention with respect to this part.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Segments(NamedTuple):
    """Segment i of the queries attends to segment i of the keys: to all of it, or causally, aligned at the end."""

    cu_q: Tensor
    """[segments + 1], int32: starts, then the end."""
    cu_k: Tensor
    max_q: int
    """Tokens of the longest segment."""
    max_k: int
    causal: bool
    window: int
    """Most keys that a query attends to, itself included; 0: no bound."""
    scale: float
    softcap: float = 0.0
    """Scores s become softcap tanh(s / softcap); 0: no cap. Only the kernel `math` supports it."""


class Kernel(NamedTuple):
    """An attention kernel."""

    forward: Callable[[Tensor, Tensor, Tensor, Segments], tuple[Tensor, Tensor]]
    """(query, key, value, segments) -> output and log-sum-exp."""
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Segments], tuple[Tensor, Tensor, Tensor]]
    """(grad_out, query, key, value, out, lse, segments) -> the gradients of query, key and value."""


def _window(segments: Segments) -> tuple[int, int]:
    return segments.window - 1 if segments.window else -1, 0 if segments.causal else -1


def _fa2_forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    left, right = _window(segments)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        segments.cu_q,
        segments.cu_k,
        segments.max_q,
        segments.max_k,
        0.0,
        segments.causal and not segments.window,
        return_debug_mask=False,
        scale=segments.scale,
        window_size_left=left,
        window_size_right=right,
    )
    return out, lse


def _fa2_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, segments: Segments
) -> tuple[Tensor, Tensor, Tensor]:
    left, right = _window(segments)
    unused = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return torch.ops.aten._flash_attention_backward(
        grad,
        query,
        key,
        value,
        out,
        lse,
        segments.cu_q,
        segments.cu_k,
        segments.max_q,
        segments.max_k,
        0.0,
        segments.causal and not segments.window,
        unused,
        unused,
        scale=segments.scale,
        window_size_left=left,
        window_size_right=right,
    )


def _fa4_options(segments: Segments) -> dict[str, Any]:
    left, right = _window(segments)
    return {
        "softmax_scale": segments.scale,
        "causal": segments.causal and not segments.window,
        "window_size_left": None if left < 0 else left,
        "window_size_right": right if segments.window else None,
        "cu_seqlens_q": segments.cu_q,
        "cu_seqlens_k": segments.cu_k,
        "max_seqlen_q": segments.max_q,
        "max_seqlen_k": segments.max_k,
    }


def _fa4_forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_fwd

    out, lse, *_ = _flash_attn_fwd(query, key, value, return_lse=True, **_fa4_options(segments))
    return out, lse


def _fa4_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, segments: Segments
) -> tuple[Tensor, Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_bwd

    grads = _flash_attn_bwd(query, key, value, out, grad, lse, **_fa4_options(segments))
    return grads[0], grads[1], grads[2]


def _math_forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=torch.float32)
    query, key, value = map(_at_least_float32, (query, key, value))
    for queries, keys in _pairs(segments):
        scores, _ = _scores(query[queries], key[keys], segments)
        lse[:, queries] = torch.logsumexp(scores, -1).float()
        p = torch.softmax(scores, -1)
        out[queries] = torch.einsum("hqk,khd->qhd", p, _repeat(value[keys], query)).to(out.dtype)
    return out, lse


def _math_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, segments: Segments
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    grad, query, key, value, out = map(_at_least_float32, (grad, query, key, value, out))
    for queries, keys in _pairs(segments):
        scores, slope = _scores(query[queries], key[keys], segments)
        p = (scores - lse[:, queries, None]).exp()
        of_p = torch.einsum("qhd,khd->hqk", grad[queries], _repeat(value[keys], query))
        delta = (grad[queries] * out[queries]).sum(-1).t()
        of_scores = p * (of_p - delta[..., None]) * segments.scale * slope
        dq[queries] = torch.einsum("hqk,khd->qhd", of_scores, _repeat(key[keys], query)).to(dq.dtype)
        for total, part in ((dk, (of_scores, query[queries])), (dv, (p, grad[queries]))):
            heads = torch.einsum("hqk,qhd->khd", *part)
            total[keys] += heads.unflatten(1, (key.shape[1], -1)).sum(2).to(total.dtype)
    return dq, dk, dv


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _pairs(segments: Segments) -> list[tuple[slice, slice]]:
    queries, keys = segments.cu_q.tolist(), segments.cu_k.tolist()
    slices = [[slice(*pair) for pair in pairwise(ends)] for ends in (queries, keys)]
    return list(zip(*slices, strict=True))


def _repeat(rows: Tensor, query: Tensor) -> Tensor:
    return rows.repeat_interleave(query.shape[1] // rows.shape[1], dim=1)


def _scores(query: Tensor, key: Tensor, segments: Segments) -> tuple[Tensor, Tensor | float]:
    """Return the scores [heads, q, k], and their derivative by what they were before the soft cap."""
    scores = torch.einsum("qhd,khd->hqk", query, _repeat(key, query)) * segments.scale
    slope: Tensor | float = 1.0
    if segments.softcap:
        bent = torch.tanh(scores / segments.softcap)
        scores, slope = segments.softcap * bent, 1 - bent * bent
    if not segments.causal:
        return scores, slope
    places = torch.arange(len(key), device=key.device)
    distance = (places[len(key) - len(query) :, None]) - places
    hidden = distance < 0
    if segments.window:
        hidden |= distance >= segments.window
    return scores.masked_fill(hidden, -torch.inf), slope


KERNELS = {
    "fa4": Kernel(_fa4_forward, _fa4_backward),
    "fa2": Kernel(_fa2_forward, _fa2_backward),
    "math": Kernel(_math_forward, _math_backward),
}
"""Name -> kernel.

`fa4` is FlashAttention 4 (flash-attn-4, Hopper and newer), `fa2` is FlashAttention 2 from torch, and `math` is plain
torch on any device, which holds the scores of a segment.
"""
