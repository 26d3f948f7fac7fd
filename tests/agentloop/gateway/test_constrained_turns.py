"""Answers with a JSON Schema and strict tools through the official clients, from the hf engine and a tiny model."""

import json
from pathlib import Path
from typing import Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from agentloop import engines
from agentloop.grammars.of_model import ModelGrammars

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
QUESTION = [{"role": "user", "content": "What is the colour?"}]
CALLED = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}


class Colour(BaseModel):
    colour: Literal["red", "green"]
    is_dark: bool


@pytest.fixture
async def engine():
    engine = engines.create("hf", model=str(CHECKPOINT), device="cpu", seed=0)
    await engine.start()
    yield engine
    await engine.close()


def assert_obeyed(session, count):
    """Each sampled turn has a grammar, which allows its tokens."""
    turns = [turn for stream in session.trajectories() for turn in stream.sampled_segments()]
    assert len(turns) == count
    for stream in session.trajectories():
        for turn in stream.sampled_segments():
            assert turn.grammar is not None
            ModelGrammars(CHECKPOINT).compiler.masks(turn.grammar, list(stream.ids[turn.start : turn.end]))


async def test_the_chat_client_parses_a_model_of_pydantic(engine, serving):
    async with serving(engine) as (client, session):
        answer = await client.chat.completions.parse(model="m", messages=QUESTION, response_format=Colour)
    assert isinstance(answer.choices[0].message.parsed, Colour)
    assert_obeyed(session, 1)


async def test_the_responses_client_parses_a_model_of_pydantic(engine, serving):
    async with serving(engine) as (client, session):
        answer = await client.responses.parse(model="m", input="What is the colour?", text_format=Colour)
    assert isinstance(answer.output_parsed, Colour)
    assert_obeyed(session, 1)


async def test_the_client_of_anthropic_gets_json(engine, opened):
    output = {"format": {"type": "json_schema", "schema": Colour.model_json_schema()}}
    async with (
        opened(engine) as (session, endpoint),
        anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key) as client,
    ):
        answer = await client.messages.create(
            model="m", max_tokens=1000, messages=QUESTION, extra_body={"output_config": output}
        )
    Colour.model_validate_json(next(block.text for block in answer.content if block.type == "text"))
    assert_obeyed(session, 1)


async def test_a_call_that_must_be_has_arguments_of_its_schema(engine, serving):
    tools = [{"type": "function", "function": CALLED | {"strict": True}}]
    async with serving(engine) as (client, session):
        answer = await client.chat.completions.create(
            model="m", messages=QUESTION, tools=tools, tool_choice="required", max_tokens=1500
        )
    for call in answer.choices[0].message.tool_calls or ():
        assert call.function.name == "add"
        assert json.loads(call.function.arguments) in ({"a": 1}, {"a": 2})
    assert_obeyed(session, 1)


async def test_the_arguments_of_a_constrained_call_stream_and_match_their_schema(engine, serving):
    tools = [{"type": "function", "function": CALLED | {"strict": True}}]
    seen = []
    async with serving(engine) as (client, session):
        asked = {"model": "m", "messages": QUESTION, "tools": tools, "tool_choice": "required", "max_tokens": 1500}
        async with client.chat.completions.stream(**asked) as stream:
            async for event in stream:
                if event.type == "chunk":
                    (choice,) = event.snapshot.choices
                elif event.type == "tool_calls.function.arguments.delta":
                    seen.append(event.arguments)
    if choice.finish_reason == "tool_calls":
        assert json.loads(seen[-1]) in ({"a": 1}, {"a": 2})
        assert choice.message.tool_calls[0].function.name == "add"
    assert_obeyed(session, 1)


async def test_a_keyword_that_the_grammar_ignores_is_an_error_of_the_client(engine, serving):
    inner = {"type": "object", "properties": {"tags": {"type": "array", "items": {}, "uniqueItems": True}}}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": inner}}
    async with serving(engine) as (client, session):
        with pytest.raises(openai.BadRequestError, match="`uniqueItems` in #/properties/tags, which is not enforced"):
            await client.chat.completions.create(model="m", messages=QUESTION, response_format=schema)
    assert session.trajectories() == []


async def test_a_schema_that_cannot_be_used_is_an_error_of_the_client(engine, serving):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}}
    async with serving(engine) as (client, session):
        with pytest.raises(openai.BadRequestError, match='Unsupported type "colour"'):
            await client.chat.completions.create(model="m", messages=QUESTION, response_format=schema)
    assert session.trajectories() == []
