"""Advantages: functions from the rewards of finished groups to advantages of their sampled tokens.

They are computed after rewards and before the batch. A reward of None, or one that is not finite, means that scoring
failed. Such a trajectory is excluded from all statistics, and its advantage is NaN so that the caller drops it. It is
never treated as a reward of 0.
"""

from agentloop.trainer.advantages import gae, normalised, process, relative, state_values, turns
from agentloop.trainer.advantages.base import (
    Advantage,
    AdvantageValue,
    evaluate,
    get,
    group_advantages,
    names,
    parse_options,
    register,
    register_outcomes,
)
from agentloop.trainer.advantages.outcome import Outcome

__all__ = [
    "Advantage",
    "AdvantageValue",
    "Outcome",
    "evaluate",
    "gae",
    "get",
    "group_advantages",
    "names",
    "normalised",
    "parse_options",
    "process",
    "register",
    "register_outcomes",
    "relative",
    "state_values",
    "turns",
]
