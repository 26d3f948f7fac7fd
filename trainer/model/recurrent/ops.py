"""Linear recurrences and short convolutions over packed rows, by the Triton kernels of flash-linear-attention.

They are custom ops with a backward of their own: one node for torch.compile and activation checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 64
"""Tokens that a kernel computes in parallel."""


class Recurrence(NamedTuple):
    """A linear recurrence with decay; `q` and `k` [1, n, heads, dk], `v` [1, n, heads, dv]."""

    forward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    """(q, k, v, g, beta, scale, cu_seqlens) -> output [1, n, heads, dv] and three tensors for the backward."""
    backward: Callable[..., tuple[Tensor, ...]]
    """(grad, q, k, v, beta, the three tensors, scale, cu_seqlens) -> gradients of q, k, v, g and, if given, beta."""


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _delta_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, cu: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_fwd

    options = {"initial_state": None, "output_final_state": False, "chunk_size": CHUNK}
    decay, out, inverse, *_ = chunk_gated_delta_rule_fwd(
        q, k, v, g, beta, scale=scale, cu_seqlens=cu, chunk_indices=_chunks(cu), **options
    )
    return out, decay, inverse, _nothing(q)


def _delta_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    inverse: Tensor,
    _: Tensor,
    scale: float,
    cu: Tensor,
) -> tuple[Tensor, ...]:
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule_bwd

    options = {"initial_state": None, "dht": None, "chunk_size": CHUNK}
    dq, dk, dv, dbeta, dg, *_rest = chunk_gated_delta_rule_bwd(
        q=q,
        k=k,
        v=v,
        g=decay,
        beta=beta,
        A=inverse,
        scale=scale,
        do=grad,
        cu_seqlens=cu,
        chunk_indices=_chunks(cu),
        **options,
    )
    return dq, dk, dv, dg, dbeta


def _kimi_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float, cu: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd

    out, _, decay, scores, inverse, *_rest = chunk_kda_fwd(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=None,
        output_final_state=False,
        cu_seqlens=cu,
        chunk_indices=_chunks(cu),
        chunk_size=CHUNK,
    )
    return out, decay, scores, inverse


def _kimi_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor,
    scores: Tensor,
    inverse: Tensor,
    scale: float,
    cu: Tensor,
) -> tuple[Tensor, ...]:
    from fla.ops.kda.chunk_bwd import chunk_kda_bwd

    dq, dk, dv, dbeta, dg, *_rest = chunk_kda_bwd(
        q=q,
        k=k,
        v=v,
        beta=beta,
        Aqk=scores,
        Akk=inverse,
        scale=scale,
        initial_state=None,
        do=grad,
        dht=None,
        g=decay,
        cu_seqlens=cu,
        chunk_indices=_chunks(cu),
        chunk_size=CHUNK,
    )
    return dq, dk, dv, dg, dbeta


def _decayed_forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, scale: float, cu: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from fla.ops.simple_gla.chunk import chunk_simple_gla_fwd
    from fla.ops.utils import chunk_local_cumsum
    from fla.ops.utils.constant import RCP_LN2

    options = {"cu_seqlens": cu, "chunk_size": CHUNK, "chunk_indices": _chunks(cu)}
    decay = chunk_local_cumsum(g, scale=RCP_LN2, **options)
    out, _ = chunk_simple_gla_fwd(q, k, v, decay, scale=scale, **options)
    return out, decay, _nothing(q), _nothing(q)


def _decayed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    _: Tensor,
    __: Tensor,
    scale: float,
    cu: Tensor,
) -> tuple[Tensor, ...]:
    from fla.ops.simple_gla.chunk import chunk_simple_gla_bwd
    from fla.ops.utils import chunk_local_cumsum

    options = {"cu_seqlens": cu, "chunk_size": CHUNK, "chunk_indices": _chunks(cu)}
    dq, dk, dv, dg, _h = chunk_simple_gla_bwd(
        q, k, v, decay, None, initial_state=None, do=grad, dht=None, scale=scale, **options
    )
    return dq, dk, dv, chunk_local_cumsum(dg, reverse=True, **options)


def _chunks(cu_seqlens: Tensor) -> Tensor:
    """Return the sequence and the number in it of each chunk; fla keeps the result for the next layer."""
    from fla.ops.utils.index import prepare_chunk_indices

    chunks: Tensor = prepare_chunk_indices(cu_seqlens, CHUNK)
    return chunks


RECURRENCES = {
    "delta": Recurrence(_delta_forward, _delta_backward),
    "kimi": Recurrence(_kimi_forward, _kimi_backward),
    "decayed": Recurrence(_decayed_forward, _decayed_backward),
}
"""Name -> recurrence.

`delta` is the gated delta rule (arXiv 2412.06464), `kimi` Kimi delta attention (arXiv 2510.26692), and `decayed` linear
attention with a decay, as in Mamba-2 (arXiv 2405.21060). `g` [1, n, heads] is the logarithm of the decay, float32; in
`kimi` it has a value for each feature of a key. `beta` [1, n, heads] is the strength of a write; `decayed` has none.
"""


@torch.library.custom_op("agentloop::recurrence", mutates_args=())
def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, scale: float, cu_seqlens: Tensor, kind: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output [1, n, heads, dv], and three tensors for the backward.

    `kind` is a name of `RECURRENCES`; `cu_seqlens` [sequences + 1], int32.
    """
    q, k, v, g = (tensor.contiguous() for tensor in (q, k, v, g))
    beta = None if beta is None else beta.contiguous()
    out, *kept = RECURRENCES[kind].forward(q, k, v, g, beta, scale, cu_seqlens)
    return out.to(v.dtype), kept[0], kept[1], kept[2]


@recurrence.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, scale: float, cu_seqlens: Tensor, kind: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    decay = g.new_empty(g.shape, dtype=torch.float32)
    matrix = k.new_empty(*v.shape[:3], CHUNK)
    if kind == "delta":
        return out, decay, matrix, _nothing(q)
    if kind == "kimi":
        return out, decay, matrix, torch.empty_like(matrix)
    return out, decay, _nothing(q), _nothing(q)


@torch.library.custom_op("agentloop::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    first: Tensor,
    second: Tensor,
    scale: float,
    cu_seqlens: Tensor,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v, g and beta; the last is empty without beta."""
    grad, q, k, v = (tensor.contiguous() for tensor in (grad, q, k, v))
    beta = None if beta is None else beta.contiguous()
    backward = RECURRENCES[kind].backward
    dq, dk, dv, dg, *dbeta = backward(grad, q, k, v, beta, decay, first, second, scale, cu_seqlens)
    of_beta = _nothing(decay) if beta is None else dbeta[0].to(beta.dtype)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dg.to(decay.dtype), of_beta


@recurrence_backward.register_fake
def _(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    decay: Tensor,
    first: Tensor,
    second: Tensor,
    scale: float,
    cu_seqlens: Tensor,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    own = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v, decay)]
    of_beta = _nothing(decay) if beta is None else torch.empty_like(beta, memory_format=torch.contiguous_format)
    return own[0], own[1], own[2], own[3], of_beta


def _keep_recurrence(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, _, beta, scale, cu_seqlens, kind = inputs
    ctx.save_for_backward(q, k, v, beta, *output[1:], cu_seqlens)
    ctx.scale, ctx.kind = scale, kind


def _recurrence_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, beta, *kept, cu_seqlens = ctx.saved_tensors
    *grads, of_beta = recurrence_backward(grad, q, k, v, beta, *kept, ctx.scale, cu_seqlens, ctx.kind)
    return (*grads, None if beta is None else of_beta, None, None, None)


recurrence.register_autograd(_recurrence_backward, setup_context=_keep_recurrence)


@torch.library.custom_op("agentloop::short_convolution", mutates_args=())
def short_convolution(
    rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, cu_seqlens: Tensor
) -> Tensor:
    """Convolve each feature with the tokens before it: rows [1, n, features], weight [features, width]."""
    from fla.modules.causal_conv1d import causal_conv1d_fwd

    out, _ = causal_conv1d_fwd(
        rows,
        weight.contiguous(),
        bias,
        None,
        activation=activation,
        cu_seqlens=cu_seqlens,
        chunk_indices=_chunks(cu_seqlens),
    )
    return out


@short_convolution.register_fake
def _(rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, cu_seqlens: Tensor) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


@torch.library.custom_op("agentloop::short_convolution_backward", mutates_args=())
def short_convolution_backward(
    grad: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of rows, weight and bias; the last is empty without bias."""
    from fla.modules.causal_conv1d import causal_conv1d_bwd

    dx, dw, db, *_ = causal_conv1d_bwd(
        rows.contiguous(),
        grad.contiguous(),
        None,
        weight.contiguous(),
        bias,
        activation=activation,
        cu_seqlens=cu_seqlens,
        chunk_indices=_chunks(cu_seqlens),
    )
    return dx, dw, _nothing(weight) if bias is None else db


@short_convolution_backward.register_fake
def _(
    grad: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (rows, weight))
    return dx, dw, _nothing(weight) if bias is None else torch.empty_like(bias)


def _keep_convolution(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, weight, bias, activation, cu_seqlens = inputs
    ctx.save_for_backward(rows, weight, bias, cu_seqlens)
    ctx.activation = activation


def _convolution_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight, bias, cu_seqlens = ctx.saved_tensors
    dx, dw, db = short_convolution_backward(grad, rows, weight, bias, ctx.activation, cu_seqlens)
    return dx, dw, None if bias is None else db, None, None


short_convolution.register_autograd(_convolution_backward, setup_context=_keep_convolution)
