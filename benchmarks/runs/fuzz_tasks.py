"""Tasks, a tool, a reward and an agent that fail, dawdle and give NaN at the rates that their options set."""

from __future__ import annotations

import asyncio
import math
import random
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import httpx

from agentloop import Tool, ToolContext, ToolResult, Trajectory
from agentloop.engines.base import SamplingParams
from agentloop.envs.agent.interface.endpoint import AgentResult, Endpoint
from agentloop.recipes.tiny.tokenizer import build_tokenizer

tokenizer = cache(build_tokenizer)
END = "<|im_end|>"
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Unused, because the gateway speaks HTTP. Without it each client would make one, which blocks the loop."""


def tasks(num: int) -> list[dict[str, Any]]:
    """Return `num` sums."""
    return [{"prompt": f"What is {n} plus {n + 1}?", "answer": 2 * n + 1} for n in range(num)]


def script(trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """Draw a turn from its seed: valid or invalid calls, one or several, rambling, or an answer."""
    chance = random.Random(params.seed)
    a, b = [*re.findall(r"\d+", tokenizer().decode(list(prompt)).rpartition("<|im_start|>user")[2]), "1", "2"][:2]
    call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
    replies = [str(int(a) + int(b)), str(chance.randrange(9)), call, call * chance.randrange(2, 5), "<tool_call>\n{"]
    said = chance.choice([*replies, call.replace("add", "ad"), "1 2 " * chance.randrange(1, 9), ""])
    ids: list[int] = tokenizer()(said + END, add_special_tokens=False)["input_ids"]
    return ids


class Add(Tool):
    """Add two numbers."""

    name = "add"
    timeout = 0.5

    def __init__(self, *, fails: float = 0.0, nan: float = 0.0, slow: float = 0.0) -> None:
        self._rates = fails, nan, slow

    async def call(self, ctx: ToolContext, a: int, b: int) -> ToolResult:
        fails, nan, slow = (ctx.rng.random() < rate for rate in self._rates)
        if slow:
            await asyncio.sleep(ctx.rng.choice([0.05, 0.2, 5.0]))
        if fails:
            raise OSError("the adder is out of order")
        return ToolResult(str(a + b), reward=math.nan if nan else ctx.rng.choice([0.0, 0.1]))


def reward(
    trajectory: Trajectory, task: Mapping[str, Any], *, fails: float = 0.0, nan: float = 0.0, slow: float = 0.0
) -> float | dict[str, Any]:
    """Judge an answer in a thread."""
    chance = random.Random(f"{trajectory.trajectory_id} {len(trajectory)}")
    if chance.random() < slow:
        time.sleep(0.3)
    if chance.random() < fails:
        raise OSError("the judge is away")
    if chance.random() < nan:
        return math.nan
    is_right = str(task["answer"]) in trajectory.final_text
    turns = [chance.choice([0.0, 0.2]) for _ in trajectory.turn_rewards]
    return {"reward": float(is_right or chance.random() < 0.3), "turn_rewards": turns, "right": float(is_right)}


async def solve(task: Mapping[str, Any], model: Endpoint) -> AgentResult:
    """Hold several conversations: continue some, rewrite some, request several answers, and sometimes give up."""
    chance = random.Random()
    headers = {"Authorization": f"Bearer {model.api_key}"}
    async with httpx.AsyncClient(base_url=model.base_url, headers=headers, timeout=600, verify=_TLS) as client:

        async def ask(messages: Sequence[Mapping[str, Any]], n: int = 1) -> list[dict[str, Any]]:
            body = {"model": model.model, "messages": messages, "n": n, "seed": 1}
            answer = (await client.post("chat/completions", json=body)).raise_for_status().json()
            return [choice["message"] for choice in answer["choices"]]

        prompt = {"role": "user", "content": str(task["prompt"])}
        answers = await ask([prompt], n=chance.choice([1, 1, 3]))
        if chance.random() < 0.1:
            raise RuntimeError("the agent gives up")
        again = {"role": "user", "content": "Again."}
        histories = [[prompt, answer, again] for answer in answers if chance.random() < 0.5]
        histories += [[{"role": "user", "content": "Something else."}]] * (chance.random() < 0.5)
        found = await asyncio.gather(*(ask(history) for history in histories), return_exceptions=chance.random() < 0.7)
    texts = [part[0]["content"] or "" for part in found if isinstance(part, list)]
    return AgentResult(answer=" ".join(texts), reward=chance.choice([None, 0.5]))
