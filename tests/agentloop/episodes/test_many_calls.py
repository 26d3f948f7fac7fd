"""A policy that repeats one call: the work for a turn with N calls grows with N, and the loop stays free."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from agentloop import AgentLoop, Env, Observation, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.episodes.tool_calls import answer_calls
from agentloop.errors import FailureKind
from agentloop.rendering.template import ChatTemplate
from agentloop.tools.toolset import Toolset
from agentloop.types.limits import Limits
from agentloop.types.messages import InvalidCall, ToolCall
from tests.support.model_families import FAMILIES, TOOLS, renderer_of


def test_calls_after_the_limit_share_one_answer():
    calls = [ToolCall("get_weather", {}, f"call_{number}") for number in range(50)]
    calls[3] = InvalidCall("Not JSON.", "", "call_3")
    limits = Limits(max_parallel_calls=2, max_answered_calls=5)
    answers = asyncio.run(answer_calls(calls, None, limits, math.inf, renderer_of("qwen3")))
    assert [message["tool_call_id"] for message in answers.messages] == [f"call_{number}" for number in range(6)]
    assert answers.messages[3]["content"] == "Not JSON."
    assert answers.messages[5]["content"].startswith("45 more calls of this turn were not run: it has 50 calls.")
    assert answers.all_invalid
    assert answers.results[5].failure is FailureKind.MODEL


def test_calls_that_run_are_answered_wherever_they_stand():
    calls = [InvalidCall("Bad.", "", f"call_{number}") for number in range(20)] + [ToolCall("get_weather", {}, "good")]
    answers = asyncio.run(answer_calls(calls, None, Limits(max_answered_calls=4), math.inf, renderer_of("qwen3")))
    ids = [message["tool_call_id"] for message in answers.messages]
    assert ids == ["call_0", "call_1", "call_2", "call_3", "good", "call_4"]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "mistral"])
def test_work_for_many_results_grows_linearly(name, monkeypatch):
    """The messages that templates render, for the first, second (a splice is made) and third turn of a shape."""
    render, rendered = ChatTemplate.render, []

    def counting(self, messages, *arguments, **options):
        rendered.append(len(messages))
        return render(self, messages, *arguments, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    shown = renderer_of(name)

    def work(number):
        rendered.clear()
        results = [
            {"role": "tool", "content": "a", "tool_call_id": f"call_{index}", "name": "get_weather"}
            for index in range(number)
        ]
        first = shown.render_continuation([shown.stop_token_ids[0]], results, TOOLS)
        for _ in range(2):
            assert shown.render_continuation([shown.stop_token_ids[0]], results, TOOLS) == first
        return sum(rendered), len(rendered)

    few, many = work(7), work(28)
    assert many[0] <= 5 * few[0]
    assert many[1] <= few[1] + 8


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Question(Env):
    def __init__(self):
        self.toolset = Toolset([add])
        self.task = {}

    async def reset(self):
        return Observation([{"role": "user", "content": "2 + 3?"}])

    async def step(self, message):
        return Observation(), 0.0, True, False

    async def score(self, trajectory):
        return 1.0


async def test_loop_stays_free_while_a_turn_of_400_calls_is_answered():
    shown = renderer_of("qwen3")
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    turns = [shown.encoder.encode_rendered(call * 400 + "<|im_end|>") for _ in range(3)]
    engine = ScriptedEngine(turns)
    lags = []

    async def watch():
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - before)

    watching = asyncio.create_task(watch())
    limits = Limits(max_turns=3, max_tokens=10**6, max_turn_tokens=10**5)
    trajectory = await AgentLoop(engine, shown, limits=limits).run(Question())
    watching.cancel()
    observed = len(trajectory) - trajectory.num_sampled
    assert trajectory.num_turns == 3
    assert observed < 20_000
    assert max(lags) < 1.0  # 62 s with an answer each
