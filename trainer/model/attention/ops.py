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
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the output [n, heads, d] and the log-sum-exp, float32 [heads, n].

    `cu_seqlens` [segments + 1] int32; `window`, `softcap` and `causal` as in `Segments`. The six arguments before
    `causal` come from `SharedPrefixes`; they are None and 0 without shared prefixes. `sinks` [heads] are the logits of
    an attention sink: one more key of each head, whose value is zero.
    """
    forward = KERNELS[kernel].forward
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    out, lse = forward(query, key, value, _own(cu_seqlens, max_length, causal, window, scale, softcap))
    if queries is None or keys is None or cu_queries is None or cu_keys is None:
        return (out, lse) if sinks is None else _fused(_with_sinks, out)(out, lse, sinks)
    to_prefix = Segments(cu_queries, cu_keys, max_queries, max_keys, False, 0, scale, softcap)
    rows = query.index_select(0, queries), key.index_select(0, keys), value.index_select(0, keys)
    merged, merged_lse = _fused(_merge, out)(out, lse, queries, *forward(*rows, to_prefix))
    out, lse = out.index_copy_(0, queries, merged), lse.index_copy_(1, queries, merged_lse)
    return (out, lse) if sinks is None else _fused(_with_sinks, out)(out, lse, sinks)


def _with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the attention with that to the sinks, which only add to the denominator of the softmax."""
    merged = torch.logaddexp(lse, sinks.float()[:, None])
    return (out * (lse - merged).exp().t()[..., None]).to(out.dtype), merged


def _merge(out: Tensor, lse: Tensor, queries: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the attention of `queries` to their own segment with that to the prefix."""
    own, own_lse = out.index_select(0, queries), lse.index_select(1, queries)
    merged = torch.logaddexp(own_lse, part_lse)
    own_share, share = ((piece - merged).exp().t()[..., None] for piece in (own_lse, part_lse))
    return (own * own_share + part * share).to(out.dtype), merged


def _fused(function: Callable[..., Any], tensor: Tensor) -> Callable[..., Any]:
    """Return a function of elements as one kernel on CUDA, instead of about ten."""
    return _compiled(function) if tensor.is_cuda else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile lazily, because the compiler takes seconds to import."""
    return torch.compile(function, dynamic=True)


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
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and sinks; the last is empty without sinks."""
    backward = KERNELS[kernel].backward
    grad, query, key, value = grad.contiguous(), query.contiguous(), key.contiguous(), value.contiguous()
    own = _own(cu_seqlens, max_length, causal, window, scale, softcap)
    dq, dk, dv = backward(grad, query, key, value, out, lse, own)
    of_sinks = lse.new_empty(0) if sinks is None else _fused(_sinks_backward, out)(grad, out, lse, sinks)
    if queries is None or keys is None or cu_queries is None or cu_keys is None:
        return dq, dk, dv, of_sinks
    of_part = backward(
        grad.index_select(0, queries),
        query.index_select(0, queries),
        key.index_select(0, keys),
        value.index_select(0, keys),
        out.index_select(0, queries),
        lse.index_select(1, queries),
        Segments(cu_queries, cu_keys, max_queries, max_keys, False, 0, scale, softcap),
    )
    # No token occurs twice in a list.
    for total, rows, part in zip((dq, dk, dv), (queries, keys, keys), of_part, strict=True):
        total.index_add_(0, rows, part)
    return dq, dk, dv, of_sinks


def _sinks_backward(grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Return the gradient of the sinks: their value is zero, so it is minus their share of grad times output."""
    shares = (sinks.float()[:, None] - lse).exp()
    return -(shares * (grad.float() * out.float()).sum(-1).t()).sum(-1).to(sinks.dtype)


def _own(cu_seqlens: Tensor, max_length: int, causal: bool, window: int, scale: float, softcap: float) -> Segments:
    return Segments(cu_seqlens, cu_seqlens, max_length, max_length, causal, window, scale, softcap)


@packed_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    return torch.empty_like(query, memory_format=torch.contiguous_format), lse


@packed_attention_backward.register_fake
def _(
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
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        torch.empty_like(key, memory_format=torch.contiguous_format),
        torch.empty_like(value, memory_format=torch.contiguous_format),
        query.new_empty(0, dtype=torch.float32) if sinks is None else torch.empty_like(sinks),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, cu_seqlens, *numbers = inputs[:-9]
    queries, keys, cu_queries, cu_keys, max_queries, max_keys, causal, sinks, softcap = inputs[-9:]
    ctx.save_for_backward(query, key, value, *output, cu_seqlens, queries, keys, cu_queries, cu_keys, sinks)
    ctx.numbers = numbers
    ctx.rest = max_queries, max_keys, causal, softcap


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, queries, keys, cu_queries, cu_keys, sinks = ctx.saved_tensors
    *rest, softcap = ctx.rest
    of_prefix = queries, keys, cu_queries, cu_keys
    *grads, of_sinks = packed_attention_backward(grad, *tensors, *ctx.numbers, *of_prefix, *rest, sinks, softcap)
    return (*grads, *[None] * 12, None if sinks is None else of_sinks, None)


packed_attention.register_autograd(_backward, setup_context=_keep)
