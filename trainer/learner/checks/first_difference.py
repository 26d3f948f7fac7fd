"""Find the layer at which two runs of a model part: what it gets is the same in both, what it returns is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Of the largest value; float32 rounds to 1e-7."""


@dataclass(slots=True)
class _Call:
    inputs: Tensor | None
    output: Tensor | None = None


@dataclass(slots=True)
class Calls:
    """The first call of each module of a model, in the order in which they ended."""

    by_name: dict[str, _Call] = field(default_factory=dict)


def record(model: nn.Module, run: Callable[[], Any]) -> Calls:
    """What goes into each module and comes out of it while `run` runs. No module's code is changed."""
    calls, running = Calls(), dict[str, _Call]()
    handles = []
    for name, module in model.named_modules():

        def before(_: nn.Module, args: Any, kwargs: dict[str, Any], name: str = name) -> None:
            running[name] = _Call(_tensor((*args, kwargs.get("hidden_states"), *kwargs.values())))

        def after(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any, name: str = name) -> None:
            call = running.pop(name)
            call.output = _tensor(output)
            calls.by_name.setdefault(name, call)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _tensor(values: Any) -> Tensor | None:
    """The first tensor of numbers with a place for tokens, copied: modules may go on in place."""
    if isinstance(values, Tensor):
        return values.detach().clone() if values.is_floating_point() and values.dim() > 1 else None
    if isinstance(values, Mapping):
        values = list(values.values())
    found = (_tensor(value) for value in values) if isinstance(values, list | tuple) else ()
    return next((tensor for tensor in found if tensor is not None), None)


def first_difference(model: nn.Module, row: Calls, alone: Calls, start: int, total: int) -> str | None:
    """The class of the innermost module that gets the same in both runs and returns something else.

    `row` is of `total` tokens, and those from `start` on are what `alone` is of. None where no module does so.
    """
    for name, call in alone.by_name.items():
        module, other = model.get_submodule(name), row.by_name.get(name)
        # A class of torch says nothing of the model: the one that called it is named.
        if other is None or type(module).__module__.startswith("torch."):
            continue
        if _are_equal(other.inputs, call.inputs, start, total) is not False and (
            _are_equal(other.output, call.output, start, total) is False
        ):
            return type(module).__name__
    return None


def _are_equal(row: Tensor | None, alone: Tensor | None, start: int, total: int) -> bool | None:
    """None where the two cannot be compared."""
    if row is None or alone is None or row.dim() != alone.dim():
        return None
    places = [d for d, (of_row, own) in enumerate(zip(row.shape, alone.shape, strict=True)) if of_row != own]
    if len(places) > 1 or (places and row.shape[places[0]] != total):
        return None
    part = row.narrow(places[0], start, alone.shape[places[0]]) if places else row
    scale = alone.abs().max() + torch.finfo(torch.float32).tiny
    return bool(((part - alone).abs().max() <= _TOLERANCE * scale).item())
