"""Lengths of episodes, drawn from distributions that were measured on real agents (`Workload`).

Turns and tools are lognormal. The defaults are those of TraceLab (4,265 coding sessions, 432,510 tool calls): a turn
takes 5.7 s in the median and 84 s in one of 100 (sigma 1.06), a call 0.3 s in the median and minutes in one of 100
(sigma 2.98). Lengths of the episodes of one task correlate: half of the variance of the logarithm is between tasks
(Seer).
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentloop.engines.base import SamplingParams
from agentloop.engines.testing.scripted import Script
from agentloop.tools.base import Tool, ToolContext

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer
    from agentloop.types.trajectory import Trajectory

_CALL = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
_NUMBER = re.compile(r"task (\d+)")


@dataclass(slots=True, frozen=True, kw_only=True)
class Workload:
    """Episodes of several turns that call a tool, and a last one that answers.

    Durations follow from the seed, the task and the place in the group, so that all modes do the same work.
    """

    turns: float = 6.0
    """Median number of tool calls."""
    turns_sigma: float = 0.5
    turn_tokens: float = 40.0
    """Median."""
    turn_sigma: float = 1.06
    max_turn_tokens: int = 1024
    tool_seconds: float = 0.3
    """Median."""
    tool_sigma: float = 2.98
    max_tool_seconds: float = 300.0
    """Time limit of the tool in seconds."""
    between_tasks: float = 0.5
    """Share of the variance of turns and turn lengths that the episodes of a task have in common."""
    seed: int = 0

    def num_calls(self, task: int, place: int) -> int:
        """Tool calls of an episode."""
        return max(round(self._draw("turns", task, place, self.turns, self.turns_sigma)), 1)

    def num_tokens(self, task: int, place: int, turn: int) -> int:
        """Of a turn."""
        length = self._draw("tokens", task, place, self.turn_tokens, self.turn_sigma, turn)
        return min(max(round(length), 1), self.max_turn_tokens)

    def call_seconds(self, task: int, place: int, call: int) -> float:
        """Of a tool call."""
        z = random.Random(f"{self.seed} tool {task} {place} {call}").gauss()
        return min(self.tool_seconds * math.exp(self.tool_sigma * z), self.max_tool_seconds)

    def _draw(self, what: str, task: int, place: int, median: float, sigma: float, turn: int = 0) -> float:
        shared = random.Random(f"{self.seed} {what} {task}").gauss()
        own = random.Random(f"{self.seed} {what} {task} {place} {turn}").gauss()
        z = self.between_tasks**0.5 * shared + (1 - self.between_tasks) ** 0.5 * own
        return median * math.exp(sigma * z)


def tasks(num: int) -> Iterator[dict[str, Any]]:
    """Return rows whose prompt is their number."""
    for number in range(num):
        yield {"prompt": f"task {number}", "id": number, "answer": ""}


def reward(trajectory: Trajectory, task: dict[str, Any]) -> float:
    """Return a random reward, the same for the same episode."""
    return float(random.Random(f"reward {task['id']} {_place(trajectory.trajectory_id)}").random() < 0.5)


class Wait(Tool):
    """Take as long as a tool does."""

    timeout = 1e6

    def __init__(self, **workload: Any) -> None:
        self._workload = Workload(**workload)

    async def open(self, ctx: ToolContext) -> Iterator[float]:
        """Return the durations of the calls of this trajectory."""
        return self._durations(ctx.task["id"], _place(ctx.trajectory_id))

    def _durations(self, task: int, place: int) -> Iterator[float]:
        call = 0
        while True:
            yield self._workload.call_seconds(task, place, call)
            call += 1

    async def call(self, ctx: ToolContext) -> str:
        """Tool that sleeps on the clock of the event loop."""
        await asyncio.sleep(next(ctx.state))
        return "done"


def script(workload: Workload, renderer: Renderer) -> Script:
    """Return a turn with the number of tokens of the workload, and a call or an answer at its end."""
    (filler,), stop = renderer.encode("0"), renderer.stop_token_ids[0]
    call, answer = [*renderer.encode(_CALL), stop], [stop]
    task_of: dict[str, int] = {}

    def say(trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> Sequence[int]:
        if turn == 0:
            task_of[trajectory_id] = int(_NUMBER.findall(renderer.decode(list(prompt)))[-1])
        task, place = task_of[trajectory_id], _place(trajectory_id)
        end = call if turn < workload.num_calls(task, place) else answer
        return [filler] * max(workload.num_tokens(task, place, turn) - len(end), 0) + end

    return say


def _place(trajectory_id: str) -> int:
    return int(trajectory_id.rpartition("-")[2])
