"""A server of the package ors-sdk, which its interpreter runs: python server.py PORT."""

import asyncio
import os
import sys

from ors import Environment, ImageBlock, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAJUlEQVR4nGP8z0B9wEQDM0cNHTV01NBR"
    "Q0cNHTV01NBRQwehoQBP5wE3s4x89AAAAABJRU5ErkJggg=="
)


class Guess(BaseModel):
    number: int


class Words(BaseModel):
    count: int


def says(text, **more):
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class Guessing(Environment):
    """Guess a number; each guess is scored by its distance, hints are not scored."""

    def setup(self):
        if self.task_spec["number"] == 13:
            raise RuntimeError("thirteen cannot be set up")
        self.guesses = 0

    def get_prompt(self):
        return [TextBlock(text=f"Guess my number below {self.task_spec['below']}.")]

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number, "below": 20} for number in range(20 if split == "train" else 3)]

    def list_task_tools(self):
        return type(self).task_tools if self.task_spec["number"] == 7 else super().list_task_tools()

    @tool
    def guess(self, given: Guess) -> ToolOutput:
        """Guess the number."""
        self.guesses += 1
        distance = abs(given.number - self.task_spec["number"])
        return says("right" if distance == 0 else "wrong", reward=1.0 - distance / 20, finished=distance == 0)

    @tool
    def hint(self) -> ToolOutput:
        """Ask for a hint."""
        return says("even" if self.task_spec["number"] % 2 == 0 else "odd")

    @tool
    def talk(self, given: Words) -> ToolOutput:
        """Hear many words."""
        return says("  é" * given.count)

    @tool
    def look(self) -> ToolOutput:
        """See a picture."""
        return ToolOutput(blocks=[TextBlock(text="Look:"), ImageBlock(data=PIXEL, mimeType="image/png")])

    @tool
    def fail(self) -> ToolOutput:
        """Fail."""
        raise RuntimeError("the tool is broken")

    @tool
    async def hang(self) -> ToolOutput:
        """Take too long."""
        await asyncio.sleep(100)
        return says("late")

    @tool
    def die(self) -> ToolOutput:
        """End the server."""
        os._exit(1)


class Other(Guessing):
    """Another environment of the same server."""


if __name__ == "__main__":
    environments = [Guessing, Other] if "both" in sys.argv else [Guessing]
    Server(environments).run(host="127.0.0.1", port=int(sys.argv[-1]))
