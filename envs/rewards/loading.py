"""Load the reward of a config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop.envs.rewards.base import Reward
from agentloop.envs.rewards.function import RewardFunction
from agentloop.envs.rewards.weighted import LoadedTerm, RewardTerm, WeightedSum
from agentloop.errors import UserError, blaming
from agentloop.registry.options import as_annotated, check_call
from agentloop.registry.registry import Registry

_HERE = "agentloop.envs.rewards"

REWARDS: Registry[Any] = Registry(
    "reward",
    "env.reward",
    {
        "code_tests": f"{_HERE}.code.reward:CodeTests",
        "contains": f"{_HERE}.answers:contains",
        "deepeyes": f"{_HERE}.deepeyes:DeepEyes",
        "exact": f"{_HERE}.answers:exact",
        "exact_match": f"{_HERE}.answers:exact_match",
        "judge": f"{_HERE}.judge:Judge",
        "last_number": f"{_HERE}.answers:last_number",
        "math": f"{_HERE}.math.equivalence:MathEquivalence",
        "none": f"{_HERE}.answers:none",
        "retool": f"{_HERE}.math.retool:ReTool",
        "search_r1": f"{_HERE}.answers:search_r1",
        "skyrl_sql": f"{_HERE}.sql_execution:SkyRlSql",
        "sql_execution": f"{_HERE}.sql_execution:SqlExecution",
        "strict_box": f"{_HERE}.answers:strict_box",
        "tags": f"{_HERE}.formats:tags",
        "tool_bonus": f"{_HERE}.formats:ToolBonus",
        "turn_cost": f"{_HERE}.formats:turn_cost",
        "verl": f"{_HERE}.verl:VerlScore",
    },
    group="agentloop.rewards",
)
"""Built-in rewards, imported on first use, and those that packages registered."""


def load_reward(
    spec: str | Sequence[RewardTerm | Mapping[str, Any] | str], options: Mapping[str, Any] | None = None
) -> RewardFunction:
    """Return the reward that a config names: a single one with `options`, or the weighted sum of several.

    Raises `UserError` if it does not exist, cannot be called as (trajectory, task, **options), or has an option of a
    wrong type.
    """
    if isinstance(spec, str):
        return _load_one(spec, options or {})
    if options:
        raise UserError("env.reward_options is set, but env.reward has several terms: give each term its own options.")
    if not spec:
        raise UserError("env.reward is an empty list: name at least one reward.")
    terms = [_term(each) for each in spec]
    loaded = [LoadedTerm(_load_one(term.name, term.options), term) for term in terms]
    return RewardFunction(WeightedSum(loaded), name=" + ".join(term.shown for term in terms))


def _term(given: RewardTerm | Mapping[str, Any] | str) -> RewardTerm:
    if isinstance(given, RewardTerm):
        return given
    return RewardTerm.model_validate({"name": given} if isinstance(given, str) else given)


def load_written(spec: str) -> Callable[..., Any]:
    """Return the function or the class of a reward. Raises `UserError` if it is neither."""
    found = REWARDS.get(spec)
    if not callable(found):
        raise UserError(
            f"The reward {spec!r} is of type {type(found).__name__}: name a function (trajectory, task) or a class "
            "derived from agentloop.envs.rewards.Reward."
        )
    if isinstance(found, type) and not issubclass(found, Reward):
        raise UserError(f"The reward {spec!r} is a class, which must derive from agentloop.envs.rewards.Reward.")
    return found  # type: ignore[no-any-return]


def _load_one(spec: str, options: Mapping[str, Any]) -> RewardFunction:
    found = load_written(spec)
    if isinstance(found, type):
        options = _checked(found, (), spec, options)
        with blaming(f"The reward {spec!r} cannot be created"):
            return RewardFunction(found(**options), name=spec)
    return RewardFunction(found, name=spec, options=_checked(found, (None, None), spec, options))


def _checked(
    found: Callable[..., Any], given: tuple[None, ...], spec: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    call = "reward(trajectory, task, **options)" if given else "Reward(**options)"
    if given and "completions" in inspect.signature(found).parameters:
        raise UserError(
            f"The reward {spec!r} is written for TRL, because it takes lists of completions. Write it as a function "
            "(trajectory, task) that returns the reward of one trajectory, whose last turn is trajectory.final_text."
        )
    try:
        check_call(found, options, *given, of=f"reward {spec!r}", call=call)
    except UserError as error:
        if "data_source" not in inspect.signature(found).parameters:
            raise
        advice = f"It is written for verl: set env.reward to verl, and its option function to {spec!r}."
        raise UserError(f"{error} {advice}") from error
    return as_annotated(found, options, of=f"reward {spec!r}")
