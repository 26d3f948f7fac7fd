"""`ToolEnv`: a prompt, tools, and a reward for the outcome. It is the environment of most datasets."""

from __future__ import annotations

from agentloop.envs.base import Env, Observation
from agentloop.envs.datasets.images import has_row_images, load_images
from agentloop.process.threads import DECODING
from agentloop.types.messages import Message


class ToolEnv(Env):
    """Environment that shows the row's messages. The first turn without a tool call ends the episode."""

    needs_prompt = True

    async def reset(self) -> Observation:
        messages = self.task["messages"]
        if has_row_images(messages):
            messages = await DECODING.run(load_images, messages)
        return Observation(tuple(messages))

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        return Observation(), 0.0, True, False
