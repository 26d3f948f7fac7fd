"""Compiling what all layers of a model run."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def compile_whole(function: F, **options: Any) -> F:
    """`function` of any number of tokens, compiled as a whole; `options` of torch.compile.

    torch counts compilations by the code that they are of, and ends with `FailOnRecompileLimitHit` at the ninth. So
    each call here has code of its own: a policy, its reference and a critic do not use up each other's.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return cast(F, torch.compile(own, dynamic=True, fullgraph=True, **options))
