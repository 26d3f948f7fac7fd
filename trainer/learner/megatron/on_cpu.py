"""megatron-core on ranks without CUDA, although its code names "cuda" for the device of the model.

Inside `on_device` these calls get the CPU, streams do nothing, and random states of devices are ignored, because the
learner has no dropout. So any machine can test layouts with gloo, using the code that runs on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Let megatron-core run on a CPU inside this context; do nothing if the device is CUDA."""
    if device.type == "cuda":
        yield
        return
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    with ExitStack() as stack:
        for name, replacement in _CUDA.items():
            stack.enter_context(patch.object(torch.cuda, name, replacement))
        stack.enter_context(patch.object(random, "_get_all_rng_states", tuple))
        stack.enter_context(patch.object(random, "_set_all_rng_states", _nothing))
        stack.enter_context(patch.object(random, "_fork_rng", nullcontext))
        stack.enter_context(patch.object(random.CudaRNGStatesTracker, "fork", _no_fork))
        stack.enter_context(patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _as_moved))
        stack.enter_context(_CpuForCuda())
        yield


class _CpuForCuda(TorchFunctionMode):
    """Creates tensors on the CPU instead of CUDA, and reports them as CUDA tensors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


class _Stream:
    """A stream or event that does nothing, because a CPU runs operations in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., _Stream]:
        return lambda *args: self


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _as_moved(value: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return value.numpy() if as_numpy and isinstance(value, torch.Tensor) else value


def _no_fork(tracker: Any, *names: str) -> Any:
    return nullcontext()


_CUDA: dict[str, Any] = {
    "current_device": lambda: torch.device("cpu"),
    "Stream": _Stream,
    "Event": _Stream,
    "stream": _Stream,
    "current_stream": _Stream,
    "default_stream": _Stream,
    "synchronize": _nothing,
}
