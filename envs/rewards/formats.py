"""Rewards for how an episode went, whatever its answer: format, tools, turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, inline
from agentloop.envs.rewards.texts import assistant_turns, turn_text

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory


@inline
def tags(
    trajectory: Trajectory,
    task: Mapping[str, Any],
    *,
    tags: Sequence[str] = ("think", "answer"),
    alone: bool = True,
    every_turn: Sequence[str] = (),
) -> float:
    """1.0 where the last turn has each of `tags` once and in this order, closed and not inside each other, else 0.0.

    `alone`: nothing but white space stands outside of them. `every_turn`: tags that each turn before the last must
    have in the same way, such as thinking before every call. Thinking that the parser took out counts as
    `<think>...</think>` at the start of its turn.
    """
    turns = [turn_text(message) for message in assistant_turns(trajectory)]
    if not turns or not follows(turns[-1], tags, alone=alone):
        return 0.0
    return float(all(follows(turn, every_turn, alone=False) for turn in turns[:-1]))


@inline
def tool_bonus(trajectory: Trajectory, task: Mapping[str, Any], *, tool: str | None = None, calls: int = 1) -> float:
    """The share of `calls` successful calls of the tool (of any, where none is named) that were made, at most 1.0.

    Successful: the tool ran and its result is no error. Writing a call is worth nothing.
    """
    return min(successful_calls(trajectory, tool), calls) / calls


@inline
def turn_cost(trajectory: Trajectory, task: Mapping[str, Any], *, cost: float = 0.01, free: int = 1) -> Outcome:
    """Takes `cost` from the reward of each turn behind the first `free` ones; turn-level advantages see where."""
    return {"reward": 0.0, "turn_rewards": [0.0 if i < free else -cost for i in range(len(trajectory.turn_rewards))]}


def successful_calls(trajectory: Trajectory, tool: str | None = None) -> int:
    """Calls whose results are no errors, of one tool or of all."""
    prefix = "succeeded/"
    counted = {key.removeprefix(prefix): n for key, n in trajectory.metrics.items() if key.startswith(prefix)}
    return int(sum(counted.values()) if tool is None else counted.get(tool, 0))


def follows(text: str, tags: Sequence[str], *, alone: bool) -> bool:
    """Whether each tag is there once, in this order, and with `alone` nothing else."""
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    places = [text.find(mark) for mark in marks]
    if -1 in places or places != sorted(places) or any(text.count(mark) != 1 for mark in marks):
        return False
    outside = r"\s*" if alone else r".*?"
    pattern = outside.join(["", *(rf"{re.escape(f'<{tag}>')}.*?{re.escape(f'</{tag}>')}" for tag in tags), ""])
    return re.fullmatch(pattern, text, re.DOTALL) is not None
