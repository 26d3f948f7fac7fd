"""Compile a function that all layers of a model run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from torch._dynamo.exc import TorchDynamoException

from agentloop.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def compile_whole(function: F, **options: Any) -> F:
    """Compile a function as one graph for any number of tokens, with `options` of torch.compile.

    torch counts compilations per code object, and raises `FailOnRecompileLimitHit` at the ninth. So each call makes its
    own code object, and a policy, its reference and a critic do not use up one common limit.

    The function raises `UserError` at its first call if it cannot be compiled.
    """
    assert isinstance(function, FunctionType)
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    own.__kwdefaults__ = function.__kwdefaults__
    compiled = torch.compile(own, dynamic=True, fullgraph=True, **options)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"The layers of this model cannot be compiled ({reason}). Set learner.compile_layers=false."
            ) from error

    return cast(F, run)
