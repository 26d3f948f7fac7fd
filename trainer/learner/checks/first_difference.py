"""Find the layer at which two runs of a model diverge: its inputs are equal in both runs, its outputs are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Largest difference, relative to the largest value; float32 rounds to 1e-7."""


@dataclass(slots=True)
class _Call:
    inputs: Tensor | None
    output: Tensor | None = None


@dataclass(slots=True)
class Calls:
    """The first call of each module of a model, in the order in which they ended."""

    by_name: dict[str, _Call] = field(default_factory=dict)


def record(model: nn.Module, run: Callable[[], Any]) -> Calls:
    """Return the inputs and outputs of each module while `run` runs, without a change to their code."""
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
    """Return a copy of the first floating-point tensor of at least two dimensions, as modules may work in place."""
    if isinstance(values, Tensor):
        return values.detach().clone() if values.is_floating_point() and values.dim() > 1 else None
    if isinstance(values, Mapping):
        values = list(values.values())
    found = (_tensor(value) for value in values) if isinstance(values, list | tuple) else ()
    return next((tensor for tensor in found if tensor is not None), None)


def first_difference(model: nn.Module, row: Calls, alone: Calls, start: int, total: int) -> str | None:
    """Return the class of the innermost module with equal inputs and different outputs in both runs, if there is one.

    `row` has `total` tokens; those of `alone` begin at `start` in it.
    """
    for name, call in alone.by_name.items():
        module, other = model.get_submodule(name), row.by_name.get(name)
        # Classes of torch do not identify a layer of the model: find the module that called them.
        if other is None or type(module).__module__.startswith("torch."):
            continue
        if _are_equal(other.inputs, call.inputs, start, total) is not False and (
            _are_equal(other.output, call.output, start, total) is False
        ):
            return type(module).__name__
    return None


def _are_equal(row: Tensor | None, alone: Tensor | None, start: int, total: int) -> bool | None:
    """Return whether a part of the row equals the sequence alone, or None if they cannot be compared."""
    if row is None or alone is None or row.dim() != alone.dim():
        return None
    places = [d for d, (of_row, own) in enumerate(zip(row.shape, alone.shape, strict=True)) if of_row != own]
    if len(places) > 1 or (places and row.shape[places[0]] != total):
        return None
    part = row.narrow(places[0], start, alone.shape[places[0]]) if places else row
    scale = alone.abs().max() + torch.finfo(torch.float32).tiny
    return bool(((part - alone).abs().max() <= _TOLERANCE * scale).item())
