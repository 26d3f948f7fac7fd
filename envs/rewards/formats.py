"""Rewards for format, tools and turns, independent of the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward, inline
from agentloop.envs.rewards.texts import assistant_turns, turn_text
from agentloop.errors import UserError

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
    """Return 1.0 if the last turn has each of `tags` once, in this order, closed and not nested, else 0.0.

    With `alone`, only white space may be outside them. Each turn before the last must have the tags `every_turn` in the
    same way, for example to enforce thinking before every call. Thinking that the parser extracted counts as
    `<think>...</think>` at the start of its turn.
    """
    turns = [turn_text(message) for message in assistant_turns(trajectory)]
    if not turns or not follows(turns[-1], tags, alone=alone):
        return 0.0
    return float(all(follows(turn, every_turn, alone=False) for turn in turns[:-1]))


class ToolBonus(Reward):
    """Number of successful calls of a tool (default: of any), divided by `calls`, at most 1.0.

    A call is successful if the tool ran and its result is not an error.
    """

    def __init__(self, *, tool: str | None = None, calls: int = 1) -> None:
        """Raise `UserError` if `calls` is below 1."""
        if calls < 1:
            raise UserError(f"`calls` of tool_bonus must be at least 1, got {calls}.")
        self._tool = tool
        self._calls = calls

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> float:
        return min(successful_calls(trajectory, self._tool), self._calls) / self._calls


@inline
def turn_cost(trajectory: Trajectory, task: Mapping[str, Any], *, cost: float = 0.01, free: int = 1) -> Outcome:
    """Subtract `cost` from the reward of each turn after the first `free` ones. Turn-level advantages use it."""
    return {"reward": 0.0, "turn_rewards": [0.0 if i < free else -cost for i in range(len(trajectory.turn_rewards))]}


def successful_calls(trajectory: Trajectory, tool: str | None = None) -> int:
    """Count the calls, of one tool or of all tools, whose results are not errors."""
    prefix = "succeeded/"
    counted = {key.removeprefix(prefix): n for key, n in trajectory.metrics.items() if key.startswith(prefix)}
    return int(sum(counted.values()) if tool is None else counted.get(tool, 0))


def follows(text: str, tags: Sequence[str], *, alone: bool) -> bool:
    """Return whether `text` has each tag once, in this order, and if `alone` nothing else."""
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    places = [text.find(mark) for mark in marks]
    if -1 in places or places != sorted(places) or any(text.count(mark) != 1 for mark in marks):
        return False
    outside = r"\s*" if alone else r".*?"
    pattern = outside.join(["", *(rf"{re.escape(f'<{tag}>')}.*?{re.escape(f'</{tag}>')}" for tag in tags), ""])
    return re.fullmatch(pattern, text, re.DOTALL) is not None
