"""Invariants 1 to 4 through the whole loop: random turns, tool outputs, templates, cuts and weight updates."""

import asyncio
import copy
import json
from array import array
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import AgentLoop, Env, Limits, Observation, ToolResult, tool
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.toolset import Toolset
from agentloop.types.trajectory import SegmentKind
from agentloop.weights.tensors import TensorWeights

TEMPLATES = Path(__file__).parents[1] / "rendering" / "templates"
CONTROL = ["<|im_end|>", "<|im_start|>assistant\n", "</tool_response>", "<tool_call>", "<think>", "</think>"]

text = st.lists(st.text(max_size=12) | st.sampled_from([*CONTROL, "\n\n", " ", "1.5", "{}"]), max_size=4).map("".join)
calls = st.lists(
    st.one_of(
        text.map(lambda said: json.dumps({"name": "speak", "arguments": {"text": said}})),
        st.just('{"name": "speak", "arguments": {"txt": 1}}'),
        st.just('{"name": "shout", "arguments": {}}'),
        st.text(max_size=10),
    ).map(lambda body: f"<tool_call>\n{body}\n</tool_call>"),
    max_size=3,
)
turns = st.lists(
    st.tuples(
        st.sampled_from(["", "<think>\nhm\n</think>\n\n", "<think>\n<tool_call>"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
        calls,
        st.booleans(),  # ends, or is cut
        st.integers(0, 2),  # weight updates before it
    ),
    min_size=1,
    max_size=5,
)


@cache
def renderer_of(template):
    tokenizer = copy.deepcopy(build_tokenizer())
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return renderer_for(tokenizer)


class Recorder(ScriptedEngine):
    """Samples the script with a logprob of its own for each token, and remembers what it sampled."""

    def __init__(self, script):
        super().__init__([[0]])
        self.script = list(script)
        self.sampled = []

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        ids, ends, updates = self.script[min(len(self.sampled), len(self.script) - 1)]
        await self.update_weights(TensorWeights([]), self.policy_version + updates)
        start = sum(len(turn.ids) for turn in self.sampled)
        turn = Generation(
            array("i", ids),
            array("f", [-1.0 - start - i for i in range(len(ids))]),
            array("i", [self.policy_version] * len(ids)),
            FinishReason.STOP if ends else FinishReason.LENGTH,
        )
        self.sampled.append(turn)
        return turn


class Chat(Env):
    def __init__(self, output):
        self.said = []

        @tool
        async def speak(text: str) -> ToolResult:
            """Say something."""
            self.said.append(text)
            return ToolResult(output)

        self.toolset = Toolset([speak])

    async def reset(self):
        return Observation([{"role": "user", "content": "speak"}])

    async def step(self, message):
        return Observation([{"role": "user", "content": "go on"}]), 0.0, False, False


@pytest.mark.parametrize("template", ["chatml", "think", "coder"])
@given(said=turns, output=text)
@settings(max_examples=40, deadline=None)
def test_exactly_the_sampled_tokens_are_trained(template, said, output):
    renderer = renderer_of(template)
    script = []
    for think, content, written, ends, updates in said:
        # A character at a time: no tokenizer would encode the text to these ids.
        ids = [token for part in (think, content, *written) for piece in part for token in renderer.encode(piece)]
        script.append(([*ids, renderer.stop_token_ids[0]] if ends else ids or renderer.encode("x"), ends, updates))
    engine, trajectory = play(renderer, script, output)

    assert trajectory.error is None
    sampled = list(trajectory.sampled_segments())
    ids, mask = trajectory.token_ids, trajectory.loss_mask
    # 1: id for id.
    assert [ids[s.start : s.end].tolist() for s in sampled] == [list(turn.ids) for turn in engine.sampled]
    # 2: only they carry loss, and everything agrees in length.
    assert mask.sum() == sum(len(turn.ids) for turn in engine.sampled)
    assert len(ids) == len(mask) == len(trajectory.logprobs) == len(trajectory.versions) == len(trajectory)
    assert not trajectory.logprobs[~mask].any()
    assert (trajectory.versions[~mask] == -1).all()
    assert [s.end for s in trajectory.segments[:-1]] == [s.start for s in trajectory.segments[1:]]
    # 3: with the logprob and the version that sampled them.
    assert trajectory.logprobs[mask].tolist() == [value for turn in engine.sampled for value in turn.logprobs]
    assert trajectory.versions[mask].tolist() == [value for turn in engine.sampled for value in turn.versions]
    # 4: a turn that was cut is the last one, and nothing of it ran.
    assert all(turn.finish_reason is FinishReason.STOP for turn in engine.sampled[:-1])
    whole = [turn for turn in engine.sampled if turn.finish_reason is FinishReason.STOP]
    results = [message for message in trajectory.messages if message["role"] == "tool"]
    assert len(results) == sum(len(renderer.parse(turn.ids).calls) for turn in whole)
    # A tool's output never writes control tokens: there are as many as with a harmless one.
    _, harmless = play(renderer, script, "x")
    assert control_tokens(renderer, trajectory) == control_tokens(renderer, harmless)


def play(renderer, script, output):
    engine = Recorder(script)
    limits = Limits(max_turns=len(script), max_tokens=1 << 20, max_invalid_turns=9, max_turn_tokens=1 << 19)
    return engine, asyncio.run(AgentLoop(engine, renderer, limits=limits).run(Chat(output), trajectory_id="t"))


def control_tokens(renderer, trajectory):
    """Those of each observation, in order."""
    control = set(renderer.encoder.added.values())
    observed = [s for s in trajectory.segments if s.kind is SegmentKind.OBSERVATION]
    return [[t for t in trajectory.token_ids[s.start : s.end].tolist() if t in control] for s in observed]
