"""Choose the attention kernel of a learner, by hardware or by configuration."""

from __future__ import annotations

import importlib.util

import torch

from agentloop.config.learner import AttentionName
from agentloop.errors import UserError

_HALF = (torch.float16, torch.bfloat16)


def choose(name: AttentionName, device: torch.device, dtype: torch.dtype) -> str:
    """Return the fastest kernel that runs, or the configured one. Raises `UserError` if that one cannot run."""
    if name == "auto":
        return next(kernel for kernel in ("fa4", "fa2", "sdpa") if not obstacle(kernel, device, dtype))
    if reason := obstacle(name, device, dtype):
        raise UserError(f"learner.attention={name} {reason} learner.attention=auto uses the fastest one that runs.")
    return name


def obstacle(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why a kernel cannot run here, and a fix; None if it can run."""
    if kernel == "sdpa":
        return None
    if device.type != "cuda":
        return f"needs a CUDA device, but the learner is on {device.type}."
    if dtype not in _HALF:
        return f"computes in half precision, not in {dtype}: set learner.compute_dtype=bfloat16."
    major, minor = torch.cuda.get_device_capability(device)
    if kernel == "fa2":
        return None if major >= 8 else f"needs compute capability 8.0 or above, this device has {major}.{minor}."
    if major < 9:
        return f"needs compute capability 9.0 (Hopper) or above, this device has {major}.{minor}."
    if not _has_fa4():
        return "needs the package flash-attn-4: pip install flash-attn-4."
    return None


def _has_fa4() -> bool:
    try:
        return importlib.util.find_spec("flash_attn.cute.interface") is not None
    except ModuleNotFoundError:
        return False
