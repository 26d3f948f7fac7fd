"""A model that one rank holds unsharded: mixed precision as in FSDP2, without FSDP's copies.

The optimizer's parameters stay in `param_dtype`. During a mini-batch the modules use copies in `compute_dtype`, cast
once. The gradient of a copy is added to the gradient of its parameter, in the parameter's precision. Results are equal,
bit for bit, to FSDP2's mixed precision on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


class UnshardedModel:
    """Swaps the parameters of a module for copies in another dtype, unless they have that dtype."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype) -> None:
        self._slots: list[tuple[nn.Module, str, nn.Parameter]] = []
        """(module, name, parameter) of each use of a parameter; tied parameters have several."""
        self._copies: dict[nn.Parameter, nn.Parameter] = {}
        for owner in module.modules():
            for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
                if parameter.dtype != compute_dtype:
                    self._slots.append((owner, name, parameter))
                    self._copies.setdefault(parameter, _copy_of(parameter, compute_dtype))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Use the copies inside this block; they take memory only here."""
        copies = list(self._copies.values())
        for copy in copies:
            copy.untyped_storage().resize_(copy.numel() * copy.element_size())
        if copies:
            with torch.no_grad():
                torch._foreach_copy_([*copies], [parameter.detach() for parameter in self._copies])
        for owner, name, parameter in self._slots:
            owner._parameters[name] = self._copies[parameter]
        try:
            yield
        finally:
            for owner, name, parameter in self._slots:
                owner._parameters[name] = parameter
            for copy in copies:
                copy.untyped_storage().resize_(0)

    def before_backward(self, *, is_last: bool) -> None:
        """Do nothing, because there are no other ranks."""


def _copy_of(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    copy = nn.Parameter(torch.empty_like(parameter, dtype=dtype), requires_grad=parameter.requires_grad)
    copy.untyped_storage().resize_(0)
    if copy.requires_grad:
        copy.register_post_accumulate_grad_hook(partial(_add_gradient, parameter))
    return copy


def _add_gradient(parameter: nn.Parameter, copy: Tensor) -> None:
    assert copy.grad is not None
    if parameter.grad is None:
        parameter.grad = copy.grad.to(parameter.dtype)
    else:
        parameter.grad += copy.grad
    copy.grad = None
