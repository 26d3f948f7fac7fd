"""Streams, and several turns for one request, through the official client."""

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import engines
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from agentloop.gateway.dialects.chat import Chat
from agentloop.gateway.turns.completions import text_for_clients
from agentloop.gateway.turns.deltas import Deltas, TextDelta
from agentloop.gateway.turns.stops import without_stop

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "2 + 3?"}]


class Teller(ScriptedEngine):
    """Tells a turn token by token, each when the test lets it."""

    def __init__(self, ids, **options):
        super().__init__([ids], **options)
        self.ids = ids
        self.may_go_on = asyncio.Semaphore(0)
        self.cancelled = asyncio.Event()

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        hear = listener()
        try:
            for token in self.ids:
                await self.may_go_on.acquire()
                hear([token])
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return await super().generate(prompt, params, trajectory_id=trajectory_id)


async def stream_of(client, **options):
    return await client.chat.completions.create(model="m", messages=QUESTION, stream=True, **options)


def content(event):
    return (event.choices[0].delta.content or "") if event.choices else ""


async def test_a_client_reads_each_word_before_the_next_is_sampled(serving, ids_of):
    engine = Teller(ids_of("It is 5." + END))
    said = ""
    async with serving(engine) as (client, session):
        engine.may_go_on.release()
        async for event in await stream_of(client):
            if content(event):
                said += content(event)
                assert session.trajectories() == []
            engine.may_go_on.release()
            last = event
            if said == "It is 5.":
                break
        for _ in engine.ids:
            engine.may_go_on.release()
    assert said == "It is 5."
    assert last.choices[0].finish_reason is None


async def test_a_client_that_disconnects_during_a_turn_leaves_no_trace(serving, ids_of):
    engine = Teller(ids_of("It is 5." + END))
    async with serving(engine) as (client, session):
        engine.may_go_on.release()
        stream = await stream_of(client)
        async for event in stream:
            if content(event):
                break
        await stream.close()
        await engine.cancelled.wait()
        assert session.trajectories() == []
        while session.num_turns:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_an_engine_that_is_lost_in_the_middle_ends_the_stream_with_an_error(serving, ids_of):
    class Lost(Teller):
        async def generate(self, prompt, params, *, trajectory_id, images=()):
            turn = await super().generate(prompt, params, trajectory_id=trajectory_id)
            return replace(turn, ids=turn.ids[::-1])

    engine = Lost(ids_of("It is 5." + END))
    async with serving(engine) as (client, session):
        for _ in engine.ids:
            engine.may_go_on.release()
        with pytest.raises(openai.APIError, match="lost while it streamed"):
            async for _ in await stream_of(client):
                pass
    assert session.trajectories() == []


async def test_the_hf_engine_streams_its_whole_turn(serving):
    engine = engines.create("hf", model=str(CHECKPOINT), device="cpu")
    await engine.start()
    options = {"max_tokens": 40, "seed": 3, "temperature": 3.0}  # as good as any text
    async with serving(engine, chosen_by="client") as (client, session):
        events = [event async for event in await stream_of(client, stream_options={"include_usage": True}, **options)]
        answer = await client.chat.completions.create(model="m", messages=QUESTION, **options)
    await engine.close()
    assert "".join(map(content, events)) == answer.choices[0].message.content
    assert sum(bool(content(event)) for event in events) > 2
    assert events[-1].usage == answer.usage
    assert len({event.id for event in events}) == 1
    one, other = session.trajectories()
    assert one.token_ids.tolist() == other.token_ids.tolist()


async def test_several_answers_are_branches_of_one_conversation(recorder, serving):
    engine = recorder("one" + END, "two" + END, "three" + END)
    async with serving(engine) as (client, session):
        answer = await client.chat.completions.create(model="m", messages=QUESTION, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == ["one", "two", "three"]
    assert answer.usage.completion_tokens == sum(len(turn.ids) for turn in engine.sampled)
    assert answer.usage.prompt_tokens == len(engine.asked[0])
    assert len({params.seed for params in engine.params}) == 3
    streams = session.trajectories()
    assert sorted(stream.num_sampled for stream in streams) == sorted(len(turn.ids) for turn in engine.sampled)
    assert session.num_turns == 3


async def test_a_seed_of_the_client_gives_different_answers_of_one_request(recorder, serving):
    engine = recorder("one" + END)
    async with serving(engine, chosen_by="client") as (client, _):
        await client.chat.completions.create(model="m", messages=QUESTION, n=2, seed=7)
    assert [params.seed for params in engine.params] == [7, 8]


async def test_a_conversation_can_continue_from_one_of_several_answers(recorder, serving):
    engine = recorder("one" + END, "two" + END, "go on" + END)
    async with serving(engine) as (client, session):
        answer = await client.chat.completions.create(model="m", messages=QUESTION, n=2)
        chosen = answer.choices[1].message
        await client.chat.completions.create(model="m", messages=[*QUESTION, chosen, QUESTION[0]])
    last, other = session.trajectories()
    assert (last.num_turns, other.num_turns) == (2, 1)
    assert engine.asked[2][: len(engine.asked[1])] == engine.asked[1]


async def test_several_answers_in_one_stream(recorder, serving):
    engine = recorder("one" + END, "two" + CALL + END)
    tools = [{"type": "function", "function": {"name": "add"}}]
    said, reasons, calls = {0: "", 1: ""}, {}, {}
    async with serving(engine) as (client, _):
        stream = await stream_of(client, n=2, tools=tools)
        async for event in stream:
            (choice,) = event.choices
            said[choice.index] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                calls[choice.index] = call.function.name
            reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert said == {0: "one", 1: "two"}
    assert reasons == {0: "stop", 1: "tool_calls"}
    assert calls == {1: "add"}


@given(
    parts=st.lists(
        st.sampled_from(
            ["so ", "é", "a < b ", "[1] ", CALL, "<think>", "hm", "</think>", "<tool", "STOP", "ST", "\n", "`x` "]
        ),
        max_size=8,
    ),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    stop=st.sampled_from([(), ("STOP",)]),
)
def test_deltas_together_are_the_turn(renderer, ids_of, parts, sizes, stop):
    """Whatever tokens come together."""
    text = "".join(parts)
    body = {"messages": QUESTION, "stop": stop}
    request = Chat().read(json.dumps(body).encode())
    ids = ids_of(text + END)
    deltas = Deltas(request, renderer)
    whole = without_stop(renderer.parse_stream(ids, "complete"), stop)[0]
    told = {"content": "", "reasoning_content": ""}

    def take(parts):
        for part in parts:
            if isinstance(part, TextDelta):
                told[part.kind] += part.text

    async def stream():
        start = 0
        for size in itertools.cycle(sizes):
            take(await deltas.more(ids[start : start + size]))
            start += size
            if start >= len(ids):
                return

    asyncio.run(stream())
    take(deltas.rest(whole))
    assert told["content"] == text_for_clients(whole)
    assert told["reasoning_content"] == (whole.reasoning or "")


def test_a_long_turn_is_not_read_at_every_token(renderer, ids_of, monkeypatch):
    request = Chat().read(json.dumps({"messages": QUESTION}).encode())
    deltas = Deltas(request, renderer)
    read = []
    parse = renderer.parse_stream
    monkeypatch.setattr(
        renderer, "parse_stream", lambda ids, *more, **options: read.append(len(ids)) or parse(ids, *more, **options)
    )
    ids = ids_of("so " * 1024)

    async def stream():
        for token in ids:
            await deltas.more([token])

    asyncio.run(stream())
    assert read[:256] == list(range(1, 257))
    assert sum(read) <= 257 * len(ids)
