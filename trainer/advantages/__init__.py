"""Advantages: small functions from what the episodes of a step were worth to how much more likely each should become.

A reward that is None or not finite means that judging failed: such a trajectory is left out of all statistics and its
advantage is NaN, for the caller to drop; it is never taken as a reward of 0.
"""

from agentloop.trainer.advantages import gae, normalised, process, relative, turns
from agentloop.trainer.advantages.base import (
    Advantage,
    AdvantageValue,
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
    "turns",
]
