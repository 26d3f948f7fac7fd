"""Rewards: what a finished trajectory is worth.

A reward is a function `reward(trajectory, task) -> float`, or `-> dict` with the float under "reward" and further
numbers for the log; it may be `async`. Configs name one as 'package.module:function', 'file.py:function', or by the
name of a built-in one: `exact`, `contains`, `last_number`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentloop.envs import answers
from agentloop.errors import UserError, nearest
from agentloop.loading import load_object

if TYPE_CHECKING:
    from agentloop.trajectory import Trajectory

Outcome = float | Mapping[str, Any]
RawReward = Callable[..., Outcome | Awaitable[Outcome]]
F = TypeVar("F", bound=RawReward)

_BUILT_IN: dict[str, RawReward] = {
    "contains": answers.contains,
    "exact": answers.exact,
    "last_number": answers.last_number,
}


def inline(function: F) -> F:
    """Mark a synchronous reward as one of microseconds: it is called on the event loop, without a thread."""
    function.runs_inline = True  # type: ignore[attr-defined]
    return function


for _function in _BUILT_IN.values():
    inline(_function)


class RewardFunction:
    """A reward as the environment calls it: asynchronous, off the event loop where it may take time, checked."""

    def __init__(self, function: RawReward, *, name: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._call = partial(function, **(options or {}))
        self._is_async = inspect.iscoroutinefunction(function)
        self._is_inline = getattr(function, "runs_inline", False)

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> float:
        """The outcome reward. Numbers beside it go to `trajectory.metrics` as `reward/<name>`.

        Raises whatever the function raises, `TypeError` for a result that is no reward and `ValueError` for one that
        is not finite.
        """
        if self._is_async or self._is_inline:
            outcome = self._call(trajectory, task)
        else:
            outcome = await asyncio.to_thread(self._call, trajectory, task)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if not isinstance(outcome, Mapping):
            return _finite(outcome, "its result")
        if "reward" not in outcome:
            raise TypeError(f"it returned a dict without 'reward', only {sorted(map(str, outcome))}")
        for key, value in outcome.items():
            if key != "reward":
                trajectory.metrics[f"reward/{key}"] = _finite(value, f"{key!r} of its result")
        return _finite(outcome["reward"], "'reward' of its result")


def load_reward(spec: str, options: Mapping[str, Any] | None = None) -> RewardFunction:
    """The reward that a config names. `options` are keyword arguments of every call.

    Raises `UserError` where there is none, or where it cannot be called as (trajectory, task, **options).
    """
    if ":" in spec:
        function = load_object(spec, "reward")
    elif spec in _BUILT_IN:
        function = _BUILT_IN[spec]
    else:
        raise UserError(
            f"There is no reward {spec!r}.{nearest(spec, _BUILT_IN)} Built in: {', '.join(sorted(_BUILT_IN))}; "
            "one of your own is named 'file.py:function' or 'package.module:function'."
        )
    if not callable(function):
        raise UserError(f"The reward {spec!r} must be a function (trajectory, task), got {type(function).__name__}.")
    _check_signature(function, spec, options or {})
    return RewardFunction(function, name=spec, options=options)


def _check_signature(function: RawReward, spec: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(None, None, **options)
    except TypeError as error:
        raise UserError(
            f"The reward {spec!r} cannot be called as reward(trajectory, task"
            f"{''.join(f', {key}=...' for key in options)}): {error}."
        ) from error


def _finite(value: object, what: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, str):
        raise TypeError(f"{what} must be a number, got {type(value).__name__} {value!r}")
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {number}")
    return number
