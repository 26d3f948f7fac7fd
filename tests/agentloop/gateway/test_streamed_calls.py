"""Calls in streams: in each format and dialect, a stream is the turn, however its tokens arrive and however it ends."""

import asyncio
import itertools
import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.engines.base import FinishReason, Generation
from agentloop.gateway.dialects.anthropic import Anthropic
from agentloop.gateway.dialects.chat import Chat
from agentloop.gateway.dialects.responses import Responses
from agentloop.gateway.turns.completions import Completion, arguments_for_clients
from agentloop.gateway.turns.deltas import Deltas
from agentloop.rendering.formats import FORMATS, call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import UnfinishedCall
from tests.agentloop.rendering.formats.streamed import AT_THE_END, CALLS, PROPERTIES, parts_of
from tests.support import dialects

QUESTION = {"role": "user", "content": "Go."}
SCHEMA = {"type": "object", "properties": PROPERTIES}
FUNCTION = {"name": "run", "parameters": SCHEMA}
EAGER = {"eager_input_streaming": True}
SPOKEN = {
    "chat": (Chat(), dialects.Chat, {"messages": [QUESTION], "tools": [{"type": "function", "function": FUNCTION}]}),
    "responses": (Responses(), dialects.Responses, {"input": [QUESTION], "tools": [{"type": "function", **FUNCTION}]}),
    "messages": (
        Anthropic(),
        dialects.Messages,
        {"messages": [QUESTION], "tools": [{"name": "run", "input_schema": SCHEMA}]},
    ),
    "eager messages": (
        Anthropic(),
        dialects.Messages,
        {"messages": [QUESTION], "tools": [{"name": "run", "input_schema": SCHEMA, **EAGER}]},
    ),
}


class ByteRenderer:
    """A renderer whose tokens are bytes."""

    def __init__(self, name):
        self.parser = TurnParser(call_format(name))

    def parse(self, sampled, **options):
        return self.parser.parse(bytes(sampled).decode(errors="replace"), **options)

    def parse_stream(self, sampled, progress, **options):
        return self.parser.parse_stream(bytes(sampled).decode(errors="replace"), progress, **options)


def request_of(spoken):
    dialect, _, body = SPOKEN[spoken]
    return dialect.read(json.dumps(body | {"model": "m", "stream": True}).encode())


def completion_of(request, ids, parsed, finish):
    zeros = [0] * len(ids)
    generation = Generation(array("i", ids), array("f", zeros), array("i", zeros), finish)
    return Completion(request, [1], generation, parsed, "name")


def streamed(name, spoken, text, sizes, *, is_cut=False):
    """Return the events of a turn whose tokens come in chunks of these sizes, and its parsed end."""
    request, renderer, ids = request_of(spoken), ByteRenderer(name), list(text.encode())
    options = {"tools": request.tools, "eager": request.eager, "reads_calls": request.reads_calls}
    parsed = renderer.parse_stream(ids, "cut" if is_cut else "complete", **options)
    completion = completion_of(request, ids, parsed, FinishReason.LENGTH if is_cut else FinishReason.STOP)
    events, deltas = SPOKEN[spoken][0].events(request, renderer), Deltas(request, renderer)
    lines = [events.begin()]

    async def play():
        start = 0
        for size in itertools.cycle(sizes):
            if start >= len(ids):
                return
            lines.extend(events.more(0, delta) for delta in await deltas.more(ids[start : start + size]))
            start += size

    asyncio.run(play())
    lines += [events.more(0, delta) for delta in deltas.rest(parsed)]
    lines += [events.end(0, completion), events.close([completion])]
    return dialects.events_of("".join(lines).splitlines()), completion


def whole_of(spoken, completion):
    dialect, reader, _ = SPOKEN[spoken]
    return comparable(reader.message(dialect.whole([completion], None)))


def comparable(message):
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    return message.get("content") or "", message.get("reasoning_content") or "", calls


@pytest.mark.parametrize("spoken", SPOKEN)
@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_stream_is_the_turn(name, spoken, data):
    """For any text, cut or not: what the client got is what the episode keeps, and what it would get without a stream
    unless a call is malformed or the turn is cut."""
    text = "".join(data.draw(st.lists(parts_of(name), max_size=6)))
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=9))
    is_cut = data.draw(st.booleans())
    events, completion = streamed(name, spoken, text, sizes, is_cut=is_cut)
    reader = SPOKEN[spoken][1]
    message = comparable(reader.message(reader.whole(events)))
    assert message[:2] == (completion.text, completion.parsed.reasoning or "")
    assert message[2] == [
        (call.id, {"name": call.name, "arguments": arguments_for_clients(call)}) for call in completion.calls
    ]
    if not is_cut and call_format(name).thinking[1] not in text:
        unstreamed = ByteRenderer(name).parse(list(text.encode()), tools=completion.request.tools)
        if not any(isinstance(call, UnfinishedCall) for call in completion.parsed.calls):
            whole = replace(completion, parsed=unstreamed)
            assert message == whole_of(spoken, whole)


@pytest.mark.parametrize("spoken", SPOKEN)
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"harmony", "llama3", "mistral"}))
def test_calls_with_text_around_them_stream(name, spoken):
    """Each call is whole before the text after it, and its argument comes in parts."""
    call = CALLS[name]("run", {"text": "a few words more than one token"})
    text = f"First. {call}\nThen. {call}\nLast."
    events, completion = streamed(name, spoken, text, [1])
    kinds = [kind for event in events if (kind := kind_of(event))]
    order = [kind for kind, _ in itertools.groupby(kinds)]
    assert order == ["text", "call", "text", "call", "text"]
    in_steps = name not in AT_THE_END and spoken != "messages"
    assert (kinds.count("call") > 20) == in_steps
    assert completion.calls[0].name == "run"


def kind_of(event):
    """Return whether an event is a part of a text or of arguments."""
    if event == "[DONE]":
        return None
    if "choices" in event:
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        return "call" if "tool_calls" in delta else "text" if delta.get("content") else None
    kind = event.get("delta", {}).get("type") if event["type"] == "content_block_delta" else event["type"]
    kinds = {"text_delta": "text", "input_json_delta": "call"}
    return kinds.get(kind) or {
        "response.output_text.delta": "text",
        "response.function_call_arguments.delta": "call",
    }.get(kind)
