"""Calls in streams through the stream helpers of the official clients, token by token."""

import asyncio
import json

import anthropic
import httpx
import pytest

from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.engines.token_listeners import listener
from tests.support.dialects import events_of

pytestmark = pytest.mark.slow

END = "<|im_end|>"
ARGUMENTS = {"path": "a.txt", "text": "one two three four five six seven"}
CALL = f'<tool_call>\n{{"name": "write", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
BROKEN = CALL.replace(" seven", ' seven", oops')
QUESTION = [{"role": "user", "content": "Write."}]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "write", "parameters": SCHEMA}}]
TOOLS = [{"type": "function", "name": "write", "parameters": SCHEMA}]
EAGER_TOOLS = [{"name": "write", "input_schema": SCHEMA, "eager_input_streaming": True}]


class Teller(ScriptedEngine):
    """Tells its turns token by token."""

    def __init__(self, *turns):
        super().__init__(list(turns))
        self.turns = list(turns)

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        ids = self.turns.pop(0)
        turn = await ScriptedEngine([ids]).generate(prompt, params, trajectory_id=trajectory_id)
        for token in turn.ids if (hear := listener()) is not None else ():
            hear([token])
            await asyncio.sleep(0)
        return turn


def assert_grows(snapshots, whole):
    assert len(set(snapshots)) > 5
    assert all(whole.startswith(each) for each in snapshots)
    assert snapshots[-1] == whole


async def test_the_chat_helper(serving, ids_of):
    turn = ids_of("I write." + CALL + "Done." + END)
    async with serving(Teller(turn, turn)) as (client, _):
        seen = []
        async with client.chat.completions.stream(model="m", messages=QUESTION, tools=CHAT_TOOLS) as stream:
            async for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    seen.append(event.arguments)
            streamed = (await stream.get_final_completion()).choices[0]
        whole = (await client.chat.completions.create(model="m", messages=QUESTION, tools=CHAT_TOOLS)).choices[0]
    assert_grows(seen, json.dumps(ARGUMENTS))
    assert (streamed.message.content, streamed.finish_reason) == ("I write.Done.", "tool_calls")
    assert streamed.message.content == whole.message.content
    (one,), (other,) = streamed.message.tool_calls, whole.message.tool_calls
    assert (one.function.name, one.function.arguments) == (other.function.name, other.function.arguments)


async def test_the_responses_helper(serving, ids_of):
    turn = ids_of("I write." + CALL + END)
    async with serving(Teller(turn, turn)) as (client, _):
        seen = []
        async with client.responses.stream(model="m", input="Write.", tools=TOOLS) as stream:
            async for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    seen.append(event.snapshot)
            streamed = await stream.get_final_response()
        whole = await client.responses.create(model="m", input="Write.", tools=TOOLS)
    assert_grows(seen, json.dumps(ARGUMENTS))
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output[-1].arguments == whole.output[-1].arguments


async def test_the_messages_helper(opened, ids_of):
    turn = ids_of("I write." + CALL + END)
    async with (
        opened(Teller(turn, turn, turn)) as (_, endpoint),
        anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key) as client,
    ):
        asked = {"model": "m", "max_tokens": 400, "messages": QUESTION}
        parts, eager_parts = [], []
        for tools, seen in ((EAGER_TOOLS, eager_parts), ([{**EAGER_TOOLS[0], "eager_input_streaming": False}], parts)):
            async with client.messages.stream(tools=tools, **asked) as stream:
                async for event in stream:
                    if event.type == "input_json":
                        seen.append(event.partial_json)
                streamed = await stream.get_final_message()
            assert streamed.content[-1].input == ARGUMENTS
            assert streamed.stop_reason == "tool_use"
        whole = await client.messages.create(tools=EAGER_TOOLS, **asked)
    assert whole.content[-1].input == ARGUMENTS
    assert len(eager_parts) > 5
    assert parts == ["".join(eager_parts)] == [json.dumps(ARGUMENTS)]


async def test_a_malformed_call_in_a_stream_is_never_valid_and_can_be_answered(serving, ids_of):
    """The client gets the beginning of the arguments, as OpenAI's own service may send it, and the episode goes on."""
    turns = [ids_of(BROKEN + END), ids_of("Sorry." + END)]
    async with serving(Teller(*turns)) as (client, session):
        async with client.chat.completions.stream(model="m", messages=QUESTION, tools=CHAT_TOOLS) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        (call,) = message.tool_calls
        with pytest.raises(json.JSONDecodeError):
            json.loads(call.function.arguments)
        assert session.failures.total() == 1
        completed = json.dumps(ARGUMENTS)  # a lenient client closes the object itself
        history = [
            *QUESTION,
            {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [
                    {"id": call.id, "type": "function", "function": {"name": "write", "arguments": completed}}
                ],
            },
            {"role": "tool", "tool_call_id": call.id, "content": "The arguments are not JSON."},
        ]
        await client.chat.completions.create(model="m", messages=history, tools=CHAT_TOOLS)
    (stream,) = session.trajectories()
    assert stream.token_ids[stream.loss_mask].tolist() == turns[0] + turns[1]


async def test_a_malformed_call_of_the_messages_route_stays_text(opened, ids_of):
    async with (
        opened(Teller(ids_of(BROKEN + END))) as (_, endpoint),
        anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key) as client,
    ):
        tools = [{"name": "write", "input_schema": SCHEMA}]
        async with client.messages.stream(model="m", max_tokens=400, messages=QUESTION, tools=tools) as stream:
            message = await stream.get_final_message()
    assert [(block.type, block.text) for block in message.content] == [("text", BROKEN)]
    assert message.stop_reason == "end_turn"


async def test_a_malformed_call_of_an_eager_tool_does_not_end_for_a_tool(opened, ids_of):
    """The client completes the input itself, so that the call looks valid."""
    turns = [ids_of(BROKEN + END), ids_of("Sorry." + END)]
    async with (
        opened(Teller(*turns)) as (session, endpoint),
        anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key) as client,
    ):
        asked = {"model": "m", "max_tokens": 400, "tools": EAGER_TOOLS}
        async with client.messages.stream(messages=QUESTION, **asked) as stream:
            message = await stream.get_final_message()
        (call,) = message.content
        assert (call.type, message.stop_reason) == ("tool_use", "end_turn")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "not JSON", "is_error": True}
        answer = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        await client.messages.create(messages=[*QUESTION, *answer], **asked)
    (stream,) = session.trajectories()
    assert stream.token_ids[stream.loss_mask].tolist() == turns[0] + turns[1]


async def test_a_client_of_messages_gets_pings_while_a_long_call_is_sampled(opened, ids_of):
    call = CALL.replace("seven", "word " * 200)
    async with opened(Teller(ids_of(call + END))) as (_, endpoint), httpx.AsyncClient() as client:
        tools = [{"name": "write", "input_schema": SCHEMA}]
        body = {"model": "m", "max_tokens": 900, "messages": QUESTION, "tools": tools, "stream": True}
        answer = await client.post(f"{endpoint.base_url}/messages", json=body)
    kinds = [event["type"] for event in events_of(answer.text.splitlines())]
    assert kinds.count("ping") >= 3
    assert kinds.index("ping") < kinds.index("content_block_start")


async def test_a_cut_call_in_a_stream_ends_with_the_limit(serving, ids_of):
    async with (
        serving(Teller(ids_of(CALL + END))) as (client, session),
        client.chat.completions.stream(model="m", messages=QUESTION, tools=CHAT_TOOLS, max_tokens=30) as stream,
    ):
        snapshots = [event.snapshot async for event in stream if event.type == "chunk"]
    (choice,) = snapshots[-1].choices
    assert choice.finish_reason == "length"
    assert json.dumps(ARGUMENTS).startswith(choice.message.tool_calls[0].function.arguments)
    assert (session.num_calls, session.failures.total()) == (0, 0)


async def test_thinking_without_an_opening_tag_is_text_in_the_stream_and_at_its_end(serving, ids_of):
    async with (
        serving(Teller(ids_of("so </think>It is 5." + END))) as (client, session),
        client.responses.stream(model="m", input="2 + 3?") as stream,
    ):
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        response = await stream.get_final_response()
    assert text == response.output_text == "so It is 5."
    (stream,) = session.trajectories()
    assert stream.num_turns == 1
