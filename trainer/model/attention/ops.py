"""Packed attention as a custom op: one node for torch.compile and activation checkpointing with every kernel.

If sequences share a prefix, the row contains it once. Their tokens then attend to their own segment and to the prefix
in two kernel calls, whose results are merged by log-sum-exp, as in Hydragen (arXiv 2402.05099) and ring attention. The
backward of both calls gets the merged output and log-sum-exp, which makes it exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agentloop.trainer.model.kernels.varlen import KERNELS, Segments


@torch.library.custom_op("agentloop::packed_attention", mutates_args=())
def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    window: int,
    scale: float,
    kernel: str,
    queries: Tensor | None,
    keys: Tensor | None,
    cu_queries: Tensor | None,
    cu_keys: Tensor | None,
    max_queries: int,
    max_keys: int,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the output [n, heads, d] and the log-sum-exp, float32 [heads, n].

    `cu_seqlens` [segments + 1] int32; `window` and `causal` as in `Segments`. The six arguments before `causal` come
    from `SharedPrefixes`; they are None and 0 without shared prefixes.
    """
    forward = KERNELS[kernel].forward
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    out, lse = forward(query, key, value, _own(cu_seqlens, max_length, causal, window, scale))
    if queries is None or keys is None or cu_queries is None or cu_keys is None:
        return out, lse
    to_prefix = Segments(cu_queries, cu_keys, max_queries, max_keys, False, 0, scale)
    rows = query.index_select(0, queries), key.index_select(0, keys), value.index_select(0, keys)
    merge = _merge_compiled() if query.is_cuda else _merge
    merged, merged_lse = merge(out, lse, queries, *forward(*rows, to_prefix))
    return out.index_copy_(0, queries, merged), lse.index_copy_(1, queries, merged_lse)


def _merge(out: Tensor, lse: Tensor, queries: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the attention of `queries` to their own segment with that to the prefix."""
    own, own_lse = out.index_select(0, queries), lse.index_select(1, queries)
    merged = torch.logaddexp(own_lse, part_lse)
    own_share, share = ((piece - merged).exp().t()[..., None] for piece in (own_lse, part_lse))
    return (own * own_share + part * share).to(out.dtype), merged


@cache
def _merge_compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `_merge` as one kernel instead of ten; compiled lazily, because the compiler takes seconds to import."""
    return torch.compile(_merge, dynamic=True)


@torch.library.custom_op("agentloop::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens: Tensor,
    max_length: int,
    window: int,
    scale: float,
    kernel: str,
    queries: Tensor | None,
    keys: Tensor | None,
    cu_queries: Tensor | None,
    cu_keys: Tensor | None,
    max_queries: int,
    max_keys: int,
    causal: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    backward = KERNELS[kernel].backward
    grad, query, key, value = grad.contiguous(), query.contiguous(), key.contiguous(), value.contiguous()
    dq, dk, dv = backward(grad, query, key, value, out, lse, _own(cu_seqlens, max_length, causal, window, scale))
    if queries is None or keys is None or cu_queries is None or cu_keys is None:
        return dq, dk, dv
    of_part = backward(
        grad.index_select(0, queries),
        query.index_select(0, queries),
        key.index_select(0, keys),
        value.index_select(0, keys),
        out.index_select(0, queries),
        lse.index_select(1, queries),
        Segments(cu_queries, cu_keys, max_queries, max_keys, False, 0, scale),
    )
    # No token occurs twice in a list.
    for total, rows, part in zip((dq, dk, dv), (queries, keys, keys), of_part, strict=True):
        total.index_add_(0, rows, part)
    return dq, dk, dv


def _own(cu_seqlens: Tensor, max_length: int, causal: bool, window: int, scale: float) -> Segments:
    return Segments(cu_seqlens, cu_seqlens, max_length, max_length, causal, window, scale)


@packed_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    return torch.empty_like(query, memory_format=torch.contiguous_format), lse


@packed_attention_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        torch.empty_like(key, memory_format=torch.contiguous_format),
        torch.empty_like(value, memory_format=torch.contiguous_format),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, cu_seqlens, *numbers, queries, keys, cu_queries, cu_keys, max_queries, max_keys, causal = inputs
    ctx.save_for_backward(query, key, value, *output, cu_seqlens, queries, keys, cu_queries, cu_keys)
    ctx.numbers = numbers
    ctx.rest = max_queries, max_keys, causal


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, queries, keys, cu_queries, cu_keys = ctx.saved_tensors
    rest = queries, keys, cu_queries, cu_keys, *ctx.rest
    grads = packed_attention_backward(grad, *tensors, *ctx.numbers, *rest)
    return (*grads, *[None] * 12)


packed_attention.register_autograd(_backward, setup_context=_keep)
