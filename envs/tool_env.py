"""`ToolEnv`: a question, tools, and a reward for what came of it. The environment of most datasets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import Env, Observation
from agentloop.envs.datasets.images import has_row_images, load_images
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


class ToolEnv(Env):
    """Shows the row's messages; the first turn that calls no tool is the answer and ends the episode."""

    def __init__(
        self, row: Mapping[str, Any], *, toolset: Toolset | None = None, reward: RewardFunction | None = None
    ) -> None:
        """`row` has `messages` (see `agentloop.envs.datasets.rows`). Without a reward every outcome is worth 0."""
        self.task = row
        self.toolset = toolset
        self._reward = reward

    async def reset(self) -> Observation:
        messages = self.task["messages"]
        if has_row_images(messages):
            messages = await asyncio.to_thread(load_images, messages)
        return Observation(tuple(messages))

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        return Observation(), 0.0, True, False

    async def score(self, trajectory: Trajectory) -> float:
        """Ask the reward. What it raises goes through, for the loop to count as a failure of the judge."""
        return 0.0 if self._reward is None else await self._reward(trajectory, self.task)
