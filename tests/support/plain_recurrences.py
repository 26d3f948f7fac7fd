"""The recurrences and convolutions of the learner in plain torch for the CPU, where their Triton kernels do not run."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from agentloop.trainer.model.recurrent import ops


def one_sequence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, scale: float) -> Tensor:
    """Return the output [n, heads, dv], token by token, for tensors without the dimension of rows."""
    state, outputs = v.new_zeros(*k.shape[1:], v.shape[-1]), []
    for token in range(len(q)):
        decay = g[token].exp()
        state = state * (decay[..., None] if g.dim() == 3 else decay[:, None, None])
        write = v[token]
        if beta is not None:
            write = (write - (state * k[token][..., None]).sum(1)) * beta[token][:, None]
        state = state + k[token][..., None] * write[:, None]
        outputs.append((state * q[token][..., None]).sum(1) * scale)
    return torch.stack(outputs)


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, scale: float, cu_seqlens: Tensor
) -> Tensor:
    """Return the output [1, n, heads, dv]."""
    parts = [
        one_sequence(*(None if t is None else t[0, start:end] for t in (q, k, v, g, beta)), scale)  # type: ignore[arg-type]
        for start, end in pairwise(cu_seqlens.tolist())
    ]
    return torch.cat(parts)[None].to(v.dtype)


def convolution(
    rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, cu_seqlens: Tensor
) -> Tensor:
    """Return the convolved rows [1, n, features]."""
    parts = []
    for start, end in pairwise(cu_seqlens.tolist()):
        padded = F.pad(rows[:, start:end].transpose(1, 2), (weight.shape[1] - 1, 0))
        summed = (padded.unfold(2, weight.shape[1], 1) * weight[:, None]).sum(-1)
        parts.append((summed if bias is None else summed + bias[:, None]).transpose(1, 2))
    out = torch.cat(parts, 1)
    return F.silu(out) if activation else out


@contextmanager
def _with_autograd() -> Iterator[None]:
    """Record a graph although an op runs below autograd."""
    none = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, none), torch.enable_grad():
        yield


def _gradients(out: Tensor, inputs: list[Tensor | None], grad: Tensor) -> list[Tensor]:
    found = iter(torch.autograd.grad(out, [tensor for tensor in inputs if tensor is not None], grad))
    return [grad.new_empty(0) if tensor is None else next(found).contiguous() for tensor in inputs]


def _leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]


@ops.recurrence.register_kernel("cpu")
def _(q, k, v, g, beta, scale, cu_seqlens, kind):
    out = recurrence(q, k, v, g, beta, scale, cu_seqlens)
    matrix = k.new_zeros(*v.shape[:3], ops.CHUNK)
    first, second = {"delta": (1, 0), "kimi": (1, 1), "decayed": (0, 0)}[kind]
    return out, g.contiguous().clone(), *(matrix.clone() if full else q.new_empty(0) for full in (first, second))


@ops.recurrence_backward.register_kernel("cpu")
def _(grad, q, k, v, beta, decay, first, second, scale, cu_seqlens, kind):
    with _with_autograd():
        inputs = _leaves(q, k, v, decay, beta)
        return tuple(_gradients(recurrence(*inputs, scale, cu_seqlens), inputs, grad))  # type: ignore[arg-type]


@ops.short_convolution.register_kernel("cpu")
def _(rows, weight, bias, activation, cu_seqlens):
    return convolution(rows, weight, bias, activation, cu_seqlens).contiguous()


@ops.short_convolution_backward.register_kernel("cpu")
def _(grad, rows, weight, bias, activation, cu_seqlens):
    with _with_autograd():
        inputs = _leaves(rows, weight, bias)
        out = convolution(*inputs, activation, cu_seqlens)  # type: ignore[arg-type]
        return tuple(_gradients(out, inputs, grad))
