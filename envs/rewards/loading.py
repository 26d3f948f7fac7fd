"""From the reward of a config to a `RewardFunction`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop.envs.rewards.base import Reward
from agentloop.envs.rewards.function import RewardFunction
from agentloop.envs.rewards.weighted import LoadedTerm, RewardTerm, WeightedSum
from agentloop.errors import UserError, blaming, nearest
from agentloop.registry.named_objects import load_object

_HERE = "agentloop.envs.rewards"

BUILT_IN: Mapping[str, str] = {
    "code_tests": f"{_HERE}.code.reward:CodeTests",
    "contains": f"{_HERE}.answers:contains",
    "deepeyes": f"{_HERE}.deepeyes:DeepEyes",
    "exact": f"{_HERE}.answers:exact",
    "exact_match": f"{_HERE}.answers:exact_match",
    "judge": f"{_HERE}.judge:Judge",
    "last_number": f"{_HERE}.answers:last_number",
    "math": f"{_HERE}.math.equivalence:MathEquivalence",
    "retool": f"{_HERE}.retool:ReTool",
    "search_r1": f"{_HERE}.answers:search_r1",
    "skyrl_sql": f"{_HERE}.sql_execution:SkyRlSql",
    "sql_execution": f"{_HERE}.sql_execution:SqlExecution",
    "strict_box": f"{_HERE}.answers:strict_box",
    "tags": f"{_HERE}.formats:tags",
    "tool_bonus": f"{_HERE}.formats:tool_bonus",
    "turn_cost": f"{_HERE}.formats:turn_cost",
    "verl": f"{_HERE}.verl:VerlScore",
}
"""Name -> where it is; imported when it is asked for."""


def load_reward(
    spec: str | Sequence[RewardTerm | Mapping[str, Any] | str], options: Mapping[str, Any] | None = None
) -> RewardFunction:
    """The reward that a config names: one with `options`, or several, whose weighted sum it is.

    Raises `UserError` where there is none, or where it cannot be called as (trajectory, task, **options).
    """
    if isinstance(spec, str):
        return _load_one(spec, options or {})
    if options:
        raise UserError("A reward of several terms has no options of its own: give each term its own.")
    if not spec:
        raise UserError("The reward has no terms.")
    terms = [_term(each) for each in spec]
    loaded = [LoadedTerm(_load_one(term.name, term.options), term) for term in terms]
    return RewardFunction(WeightedSum(loaded), name=" + ".join(term.shown for term in terms))


def _term(given: RewardTerm | Mapping[str, Any] | str) -> RewardTerm:
    if isinstance(given, RewardTerm):
        return given
    return RewardTerm.model_validate({"name": given} if isinstance(given, str) else given)


def _load_one(spec: str, options: Mapping[str, Any]) -> RewardFunction:
    if ":" not in spec and spec not in BUILT_IN:
        raise UserError(
            f"There is no reward {spec!r}.{nearest(spec, BUILT_IN)} Built in: {', '.join(BUILT_IN)}; "
            "one of your own is named 'file.py:function' or 'package.module:function'."
        )
    found = load_object(BUILT_IN.get(spec, spec), "reward")
    if isinstance(found, type) and issubclass(found, Reward):
        _check(found, (), spec, options)
        with blaming(f"The reward {spec!r} cannot be made"):
            return RewardFunction(found(**options), name=spec)
    if not callable(found):
        raise UserError(f"The reward {spec!r} must be a function (trajectory, task), got {type(found).__name__}.")
    if isinstance(found, type):
        raise UserError(f"The reward {spec!r} is a class, which must derive from agentloop.envs.rewards.Reward.")
    _check(found, (None, None), spec, options)
    return RewardFunction(found, name=spec, options=options)


def _check(found: Callable[..., Any], given: tuple[None, ...], spec: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(found).bind(*given, **options)
    except TypeError as error:
        called = f"called as reward(trajectory, task{''.join(f', {key}=...' for key in options)})"
        known = ", ".join(list(inspect.signature(found).parameters)[len(given) :]) or "none"
        advice = ""
        if "data_source" in inspect.signature(found).parameters:
            advice = f" It is written for verl: set reward to verl, and its option function to {spec!r}."
        raise UserError(
            f"The reward {spec!r} cannot be {called if given else 'made with these options'}: {error}. "
            f"Options it takes: {known}.{advice}"
        ) from error
