"""Invariants 1 to 3 through HTTP, in each dialect: agents append, edit, forget, ask again and ask at once."""

import asyncio
from array import array
from functools import cache

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import Limits
from agentloop.engines.base import FinishReason, Generation
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.gateway import Gateway, Sampling
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.types.trajectory import SegmentKind
from tests.support.dialects import DIALECTS

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SAID = ["yes", "", "two words", "<think>\nhm\n</think>\n\nso", '<tool_call>\n{"name": "look"}\n</tool_call>',
        "a<tool_call>\n{bad</tool_call>", "é\n\n", "<|im_start|>user"]  # fmt: skip

text = st.text(max_size=8) | st.sampled_from(["<|im_end|>", "</tool_response>", "\n", " "])
# What an agent does to a conversation that it holds: (which, what, text, with tools).
steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["new", "append", "append", "append", "again", "edit", "drop", "forget_thinking", "fork"]),
        text,
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
rounds = st.lists(steps, min_size=1, max_size=4)  # the calls of a round are made at once


@cache
def renderer():
    return renderer_for(build_tokenizer())


class Scribe(ScriptedEngine):
    """Says one of `SAID`, a character at a time, with logprobs and versions that occur once."""

    def __init__(self):
        super().__init__([[0]])
        self.said = []

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        number = len(self.said)
        prompt = list(prompt)
        stop = renderer().stop_token_ids[0]
        ids = [token for letter in SAID[number % len(SAID)] for token in renderer().encode(letter)]
        ids = [*ids, stop] if number % 5 != 4 or not ids else ids
        turn = Generation(
            array("i", ids),
            array("f", [-number - i / 1024 for i in range(len(ids))]),
            array("i", range(1000 * number, 1000 * number + len(ids))),
            FinishReason.STOP if ids[-1] == stop else FinishReason.LENGTH,
        )
        self.said.append((prompt, turn))
        for _ in range(number % 3):
            await asyncio.sleep(0)
        return turn


def prepare(histories, step):
    """The history that a step asks with, and the place where it is kept."""
    which, what, added, _ = step
    which = which % len(histories) if histories else 0
    if what == "new" or not histories:
        histories.append([])
        which = len(histories) - 1
    history = histories[which]
    if what == "fork":
        history = [*history]
        histories.append(history)
        which = len(histories) - 1
    if what == "again" and len(history) > 1:
        return which, history[:-1]
    if what == "edit" and history:
        place = len(added) % len(history)
        history[place] = {**history[place], "content": added + "!"}
    if what == "drop" and len(history) > 2:
        del history[0]
    if what == "forget_thinking":
        for message in history:
            message.pop("reasoning_content", None)
    for call in (history[-1] if history else {}).get("tool_calls") or ():
        history.append({"role": "tool", "tool_call_id": call["id"], "content": added})
    if not history or history[-1]["role"] == "assistant":
        history.append({"role": "user", "content": [{"type": "text", "text": added}] if len(added) % 2 else added})
    return which, history


dialects = st.sampled_from(DIALECTS)


async def run(client, base_url, agent, dialect):
    histories = []
    for calls in agent:
        asked = []
        for step in calls:
            which, history = prepare(histories, step)
            asked.append((which, [dict(message) for message in history], step[3]))
        answers = await asyncio.gather(
            *(client.post(f"{base_url}/{dialect.path}", json=dialect.body(h, [TOOL] if t else [])) for _, h, t in asked)
        )
        for (which, history, _), answer in zip(asked, answers, strict=True):
            assert answer.status_code == 200, answer.text
            histories[which] = [*history, dialect.message(answer.json())]


@pytest.fixture(scope="module")
def serve():
    """Run one agent: its engine and the session's streams. The server lives as long as the module."""
    scribe = Scribe()
    gateway = Gateway(scribe, renderer())
    options = {"limits": Limits(max_turns=1000, max_invalid_turns=1000), "sampling": Sampling(), "trajectory_id": "t"}

    async def play(agent, dialect):
        scribe.said.clear()
        async with gateway.session(**options) as (session, endpoint):
            await run(client, endpoint.base_url, agent, dialect)
        return list(scribe.said), session.trajectories()

    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(timeout=60)
        alive = gateway.session(**options)
        runner.run(alive.__aenter__())
        yield lambda agent, dialect: runner.run(play(agent, dialect))
        runner.run(alive.__aexit__(None, None, None))
        runner.run(client.aclose())


@given(agent=rounds, dialect=dialects)
@settings(max_examples=90, deadline=None)
def test_exactly_the_sampled_tokens_are_trained(serve, agent, dialect):
    said, streams = serve(agent, dialect)
    assert len(said) == sum(map(len, agent))
    found = {}
    for stream in streams:
        ids, mask = stream.token_ids, stream.loss_mask
        # 2: only sampled tokens carry loss, and everything agrees in length.
        assert len(ids) == len(mask) == len(stream.logprobs) == len(stream.versions)
        assert not stream.logprobs[~mask].any()
        assert (stream.versions[~mask] == -1).all()
        assert len(stream.turn_rewards) == stream.num_turns
        for segment in stream.sampled_segments():
            turn = slice(segment.start, segment.end)
            # 3: the version names the turn.
            number = int(stream.versions[segment.start]) // 1000
            prompt, generation = said[number]
            # 1: id for id, behind the very ids that the engine was given.
            assert ids[turn].tolist() == list(generation.ids)
            assert ids[: segment.start].tolist() == prompt
            assert stream.logprobs[turn].tolist() == list(generation.logprobs)
            assert stream.versions[turn].tolist() == list(generation.versions)
            assert number not in found, "a turn carries loss in two streams"
            found[number] = stream
    assert sorted(found) == list(range(len(said)))


@given(added=st.lists(text, min_size=1, max_size=5), dialect=dialects)
@settings(max_examples=30, deadline=None)
def test_an_agent_that_only_appends_leaves_one_stream(serve, added, dialect):
    said, streams = serve([[(0, "append", each, True)] for each in added], dialect)
    assert len(streams) == 1
    assert streams[0].num_turns == len(said)
    assert streams[0].segments[0].kind is SegmentKind.PROMPT
    assert sum(segment.kind is SegmentKind.PROMPT for segment in streams[0].segments) == 1
