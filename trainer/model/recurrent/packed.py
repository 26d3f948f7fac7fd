"""Let the recurrent layers of transformers read packed rows, by kernels that know where each sequence begins.

These layers call a convolution and a recurrence by names of their module, and pass their keyword arguments to both.
The functions here replace them. Only a prepared layer passes `packed_starts`; for other layers they call the original
function, or plain torch if its kernel does not work.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn

from agentloop.trainer.model.recurrent import ops

_PACKAGE = "fla-core"
_OLDEST, _TOO_NEW = Version("0.6"), Version("0.7")


def obstacle() -> str | None:
    """Return why the kernels cannot be used, and a fix; None if they can."""
    try:
        found = Version(version(_PACKAGE))
    except PackageNotFoundError:
        return f"the package {_PACKAGE} is not installed: pip install 'agentloop[fla]'"
    if not _OLDEST <= found < _TOO_NEW:
        return f"{_PACKAGE} is {found}, but {_OLDEST} to below {_TOO_NEW} is needed: pip install 'agentloop[fla]'"
    return _obstacle_of_triton()


def _obstacle_of_triton() -> str | None:
    """Triton from 3.4 to 3.7.0 computes wrong gradients of gated recurrences on Hopper; fla then raises in backward."""
    try:
        found = Version(version("triton"))
    except PackageNotFoundError:
        return "the package triton is not installed: pip install triton"
    is_wrong = Version("3.4") <= found < Version("3.7.1")
    if not is_wrong or not torch.cuda.is_available() or importlib.util.find_spec("tilelang"):
        return None
    if torch.cuda.get_device_capability()[0] != 9:
        return None
    return (
        f"triton {found} computes wrong gradients of them on Hopper GPUs (flash-linear-attention issue 640): "
        "use a torch with triton 3.7.1 or later"
    )


def prepare(module: nn.Module, *, kernels: bool) -> bool:
    """Let a recurrent layer read packed rows; return whether it does.

    It can if its forward calls one of the recurrences that have a kernel. Without `kernels` it reads none, and calls
    plain torch if its own kernel does not work.
    """
    code = inspect.unwrap(type(module).forward).__code__
    if not any(name in code.co_names for name in _RECURRENCES):
        return False
    names = vars(sys.modules[type(module).__module__])
    for name, ours in _FUNCTIONS.items():
        if name in code.co_names and not hasattr(names[name], "theirs"):
            names[name] = _in_place_of(names[name], ours)
    if kernels:
        module.__class__ = _reading_packed_rows(type(module))  # type: ignore[arg-type]
    return kernels


@cache
def _reading_packed_rows(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass whose forward passes `packed_starts` on.

    All layers have the same subclass, so one compilation serves them. torch would compile a forward of each layer's own
    again, and fail at the ninth layer.
    """

    @wraps(kind.forward)
    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(module, *args, packed_starts=kwargs.get("cu_seq_lens_q"), **kwargs)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "forward": forward})


def _in_place_of(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    # `theirs` is a kernel if its package is installed, even on a CPU and if the kernel does not work.
    plain, works = inspect.unwrap(theirs), obstacle() is None

    def chosen(*args: Any, packed_starts: Tensor | None = None, **kwargs: Any) -> Any:
        if packed_starts is not None:
            return ours(*args, starts=packed_starts, **kwargs)
        return (theirs if works and args[0].is_cuda else plain)(*args, **kwargs)

    chosen.theirs = theirs  # type: ignore[attr-defined]
    return wraps(theirs)(chosen)


def _convolution(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, *, starts: Tensor, **_: Any
) -> Tensor:
    """Convolve rows [1, features, n] with weight [features, width]."""
    out = ops.short_convolution(rows.transpose(1, 2).to(weight.dtype), weight, bias, activation, starts)
    return out.transpose(1, 2).to(rows.dtype)


def _delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    starts: Tensor,
    kind: str,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute a delta rule: query and key [1, n, key_heads, dk], value [1, n, heads, dv].

    Each head of the keys serves heads / key_heads consecutive heads of the values, as since transformers 5.20.
    """
    if use_qk_l2norm_in_kernel:
        query, key = _normalized(query), _normalized(key)
    if (groups := value.shape[2] // key.shape[2]) > 1:
        query, key = query.repeat_interleave(groups, 2), key.repeat_interleave(groups, 2)
    out, *_ = ops.recurrence(query, key, value, g.float(), beta, key.shape[-1] ** -0.5, starts, kind)
    return out, None


def _normalized(rows: Tensor) -> Tensor:
    wide = rows.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(rows.dtype)


def _mamba2(
    states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    *,
    starts: Tensor,
    **_: Any,
) -> Tensor:
    """Compute Mamba-2: states [1, n, heads, d], dt [1, n, heads], B and C [1, n, groups, d_state]."""
    step = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    step = (F.softplus(step) if dt_softplus else step).clamp(*dt_limit)
    groups = states.shape[2] // B.shape[2]
    write, read = (rows.repeat_interleave(groups, dim=2).to(states.dtype) for rows in (B, C))
    value = (states.float() * step[..., None]).to(states.dtype)
    out, *_ = ops.recurrence(read, write, value, step * A.float(), None, 1.0, starts, "decayed")
    return out if D is None else out + states * D[:, None].to(states.dtype)


def _not_fused(*_: Any, **__: Any) -> None:
    """Replace the kernel that computes a whole Mamba-2 layer; None lets the layer call its parts."""


_RECURRENCES: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": partial(_delta_rule, kind="delta"),
    "chunk_kimi_delta_attention": partial(_delta_rule, kind="kimi"),
    "mamba2_chunk_scan": _mamba2,
}
_FUNCTIONS = _RECURRENCES | {
    "causal_conv1d_fn": _convolution,
    "mamba2_split_conv1d_scan_combined": _not_fused,
}
"""Name in a module of transformers -> the function for packed rows."""
