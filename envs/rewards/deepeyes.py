"""`DeepEyes`: the reward of the paper (arXiv 2505.14362), 0.8 accuracy + 0.2 format + 1.2 tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import Outcome, Reward
from agentloop.envs.rewards.formats import successful_calls
from agentloop.envs.rewards.texts import assistant_turns, inside, turn_text

if TYPE_CHECKING:
    from agentloop.envs.rewards.weighted import RewardTerm
    from agentloop.types.trajectory import Trajectory

_CORRECT_ABOVE = 0.5


class DeepEyes(Reward):
    """Weighted sum of accuracy, format and tool use.

    Another reward judges the `<answer>`. Format is 0 or -1. The tool counts if the model saw a crop and the answer is
    correct. A failed call, or text that looks like a call, earns nothing.
    """

    def __init__(
        self,
        accuracy: str | Mapping[str, Any],
        *,
        accuracy_weight: float = 0.8,
        format_weight: float = 0.2,
        tool_weight: float = 1.2,
        tool: str = "image_zoom_in_tool",
        max_answer_chars: int = 1000,
    ) -> None:
        """Load `accuracy`, the reward that judges the answer: `judge` or `{name: judge, options: {...}}`.

        The default weights are for visual search. For ThinkLite's mathematics they are 1.2, 0.4 and 0. An answer of
        `max_answer_chars` or more counts as wrong in content and format, without a call of the judge, because long
        answers persuade judges.
        """
        from agentloop.envs.rewards.loading import load_reward

        self._accuracy = load_reward([_term(accuracy)])
        self._weights = (accuracy_weight, format_weight, tool_weight)
        self._tool = tool
        self._max_answer_chars = max_answer_chars

    async def start(self) -> None:
        await self._accuracy.start()

    async def shutdown(self) -> None:
        await self._accuracy.shutdown()

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Outcome:
        turns = [turn_text(message) for message in assistant_turns(trajectory)]
        answers = inside(turns[-1], "answer") if turns else []
        in_bounds = bool(answers) and len(answers[-1]) < self._max_answer_chars
        accuracy = 0.0
        metrics: Mapping[str, float] = {}
        if in_bounds:
            judgement = await self._accuracy.judge(trajectory, task)
            accuracy, metrics = judgement.reward, judgement.metrics
        well_formed = 0.0 if in_bounds and _balanced("".join(turns)) else -1.0
        used = float(accuracy > _CORRECT_ABOVE and successful_calls(trajectory, self._tool) > 0)
        parts = (accuracy, well_formed, used)
        reward = sum(weight * part for weight, part in zip(self._weights, parts, strict=True))
        return {**metrics, "reward": reward, "accuracy": accuracy, "format": well_formed, "tool": used}


def _term(accuracy: str | Mapping[str, Any]) -> RewardTerm:
    from agentloop.envs.rewards.weighted import RewardTerm

    return RewardTerm.model_validate({"name": accuracy} if isinstance(accuracy, str) else accuracy)


def _balanced(text: str) -> bool:
    return all(text.count(f"<{tag}>") == text.count(f"</{tag}>") for tag in ("think", "answer"))
