"""`ReTool`: the reward of the paper (arXiv 2504.11536), +1 or -1 for the answer, nothing for code or format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.answers import strict_box
from agentloop.envs.rewards.base import Outcome, Reward
from agentloop.envs.rewards.math.equivalence import MathEquivalence
from agentloop.envs.rewards.texts import assistant_turns

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_PER_TOOL_TURN = 0.1
_BEST_WRONG = -0.6


class ReTool(Reward):
    """Reward of +1 for a correct answer, else -1. Options add verl's two deviations from the paper."""

    def __init__(self, *, strict: bool = True, tool_shaping: bool = False, **math_options: Any) -> None:
        """Select how to compare answers. Raises the errors of `MathEquivalence`.

        With `strict`, the box must equal the answer exactly, as in verl's recipe (`strict_box`). Otherwise it must be
        mathematically equal, as in the paper, and `math_options` are options of the reward `math`. With `tool_shaping`,
        a wrong answer gets 0.1 more for each turn that called a tool, up to -0.6.
        """
        self._math = None if strict else MathEquivalence(boxed=True, **math_options)
        self._tool_shaping = tool_shaping

    async def shutdown(self) -> None:
        if self._math is not None:
            await self._math.shutdown()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        outcome = strict_box(trajectory, task) if self._math is None else await self._math(trajectory, task)
        correct = outcome["reward"] if isinstance(outcome, Mapping) else outcome
        reward = 1.0 if correct else -1.0
        if self._tool_shaping and not correct:
            reward = min(_BEST_WRONG, reward + _PER_TOOL_TURN * _tool_turns(trajectory))
        return {"reward": reward, "accuracy": correct}


def _tool_turns(trajectory: Trajectory) -> int:
    return sum(bool(message.get("tool_calls")) for message in assistant_turns(trajectory))
