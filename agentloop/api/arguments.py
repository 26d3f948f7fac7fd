"""`checked`: checks the types of the arguments of the public functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose calls raise `UserError` if the type of an argument differs from its annotation."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from agentloop.registry.options import as_annotated

        given = signature.bind(*args, **kwargs).arguments
        as_annotated(function, given, of=f"function {function.__qualname__}", may_be_objects=False)
        return function(*args, **kwargs)

    return call
