"""Check the numbers that environments and rewards return."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from agentloop.errors import WrongTypeError, named, shown


def checked_number(value: Any, method: Callable[..., Any], what: str = "reward") -> float:
    """Return a reward, or another number that `method` returned.

    A value of a wrong type raises `WrongTypeError`, which ends the run. A number that is not finite may come from one
    row: it raises `ValueError`, which ends one episode.
    """
    number = scalar(value)
    if not isinstance(number, Real):
        hint = f" Is there a path through it without a {what}?" if value is None else ""
        raise WrongTypeError(f"{named(method)} returned {shown(value)} as the {what}: it must be a number.{hint}")
    if not math.isfinite(number):
        raise ValueError(f"{named(method)} returned {number} as the {what}: it must be a finite number")
    return float(number)


def scalar(value: Any) -> Any:
    """Return the Python number in a numpy scalar or a tensor of one element, and other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
