"""`ToolEnv`: a prompt, tools, and a reward for the outcome. It is the environment of most datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import Env, Observation
from agentloop.envs.datasets.images import has_row_images, load_images
from agentloop.process.threads import DECODING
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


class ToolEnv(Env):
    """Environment that shows the row's messages. The first turn without a tool call ends the episode."""

    def __init__(
        self, row: Mapping[str, Any], *, toolset: Toolset | None = None, reward: RewardFunction | None = None
    ) -> None:
        """Show the `messages` of `row` (`agentloop.envs.datasets.rows`). Without a reward the outcome is 0."""
        self.task = row
        self.toolset = toolset
        self._reward = reward

    async def reset(self) -> Observation:
        messages = self.task["messages"]
        if has_row_images(messages):
            messages = await DECODING.run(load_images, messages)
        return Observation(tuple(messages))

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        return Observation(), 0.0, True, False

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward. The loop counts errors that it raises as failures of the judge."""
        return 0.0 if self._reward is None else await self._reward(trajectory, self.task)
