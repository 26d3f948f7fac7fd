"""Check the numbers that environments and rewards return."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from agentloop.errors import WrongTypeError, named, shown


def checked_number(value: Any, method: Callable[..., Any], what: str = "reward") -> float:
    """Return `value`, which `method` returned as a reward or another number, as a float.

    Raises `WrongTypeError` for a value of a wrong type, which ends the run, and `ValueError` for a number that is not
    finite, which may come from a single row and ends one episode.
    """
    number = scalar(value)
    if not isinstance(number, Real):
        hint = f" Does every path through it return a {what}?" if value is None else ""
        raise WrongTypeError(f"{named(method)} returned {shown(value)} as the {what}: it must be a number.{hint}")
    if not math.isfinite(number):
        raise ValueError(f"{named(method)} returned {number} as the {what}: it must be a finite number")
    return float(number)


def scalar(value: Any) -> Any:
    """Return the Python number in a numpy scalar or a tensor of one element, and other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
