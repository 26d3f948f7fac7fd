"""The Messages API through Anthropic's own client."""

import base64
import io
import json
from contextlib import asynccontextmanager

import anthropic
import httpx
import pytest
from PIL import Image

from agentloop import Limits
from agentloop.gateway.dialects.anthropic import Anthropic
from agentloop.gateway.turns.errors import ApiError

pytestmark = pytest.mark.slow

END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 3.0, "a": 2}}\n</tool_call>'
TOOLS = [{"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}]
QUESTION = {"role": "user", "content": "2 + 3?"}


@pytest.fixture
def client_of(opened):
    """`async with client_of(engine) as (client, session)`."""

    @asynccontextmanager
    async def serve(engine, **options):
        async with (
            opened(engine, **options) as (session, endpoint),
            anthropic.AsyncAnthropic(base_url=endpoint.root_url, api_key=endpoint.api_key) as client,
        ):
            yield client, session

    return serve


async def ask(client, messages, **options):
    return await client.messages.create(model="m", max_tokens=64, messages=messages, **options)


def result(call, content):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": content}]}


def trained(session):
    return [stream.token_ids[stream.loss_mask].tolist() for stream in session.trajectories()]


async def test_thinking_calls_and_results_are_one_stream(recorder, client_of, ids_of, tokenizer):
    first, second = "<think>\nhm\n</think>\n\nI add." + CALL + END, "It is 5." + END
    async with client_of(recorder(first, second)) as (client, session):
        answer = await ask(client, [QUESTION], tools=TOOLS, system="Be brief.")
        thinking, text, call = answer.content
        assert (answer.stop_reason, thinking.thinking, text.text) == ("tool_use", "hm", "I add.")
        assert (call.name, call.input) == ("add", {"a": 2, "b": 3})
        # A client in JavaScript writes 3.0 as 3.
        said = [block.model_dump() for block in answer.content]
        said[2]["input"] = {"a": 2, "b": 3}
        messages = [QUESTION, {"role": "assistant", "content": said}, result(call, [{"type": "text", "text": "5"}])]
        last = await ask(client, messages, tools=TOOLS, system="Be brief.")
    assert (last.stop_reason, last.content[0].text) == ("end_turn", "It is 5.")
    (stream,) = session.trajectories()
    assert trained(session) == [ids_of(first) + ids_of(second)]
    assert last.usage.output_tokens == len(ids_of(second))
    assert last.usage.input_tokens + last.usage.output_tokens == len(stream)
    assert [message["role"] for message in stream.messages] == ["system", "user", "assistant", "tool", "assistant"]


async def test_defaults_that_a_client_adds_to_a_call_keep_the_prefix(recorder, client_of):
    """Claude Code fills in the defaults of its tools. A call whose sampled arguments change is another call."""
    async with client_of(recorder(CALL + END, "It is 5." + END)) as (client, session):
        (call,) = (await ask(client, [QUESTION], tools=TOOLS)).content
        for number, added in enumerate(({"exact": False}, {"exact": False, "a": 9})):
            said = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input | added}
            await ask(client, [QUESTION, {"role": "assistant", "content": [said]}, result(call, "5")], tools=TOOLS)
            assert len(session.trajectories()) == number + 1


@anthropic.beta_async_tool
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_clients_tool_runner_continues_its_thread(recorder, client_of, ids_of, renderer, stream):
    """After the first request it sends only the results, without the tools and the system message."""
    turns = ["<think>\nhm\n</think>\n\nI add." + CALL + END, CALL + END, "It is 5." + END]
    engine = recorder(*turns)
    async with client_of(engine) as (client, session):
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=100, system="Be brief.", messages=[QUESTION], tools=[add], stream=stream
        )
        last = await runner.until_done()
    assert last.content[0].text == "It is 5."
    (stream,) = session.trajectories()
    assert trained(session) == [[token for turn in turns for token in ids_of(turn)]]
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message["role"] for message in stream.messages] == roles
    assert stream.messages[3]["name"] == "add"
    assert len(engine.asked) == 3
    assert stream.token_ids.tolist() == [*engine.asked[2], *ids_of(turns[2])]
    assert "2 + 3?" in renderer.decode(engine.asked[2])


async def test_a_thread_that_is_not_known_is_sent_again_as_a_whole(recorder, client_of):
    async with client_of(recorder("one" + END, "two" + END)) as (client, session):
        thread = client.beta.messages.thread(model="m", max_tokens=64)
        await thread.send(QUESTION)
        session.memory.conversations.clear()
        await thread.send(QUESTION)
    (stream,) = session.trajectories()
    assert stream.num_turns == 2


@pytest.mark.parametrize("field", ["system", "tools"])
async def test_a_thread_keeps_its_system_message_and_tools(recorder, client_of, field):
    async with client_of(recorder("one" + END)) as (client, _):
        first = await ask(client, [QUESTION], extra_body={"thread": {"type": "create"}})
        more = {"thread": {"type": "continue", "previous_message_id": first.id}, field: []}
        with pytest.raises(anthropic.BadRequestError, match=f"`{field}` belongs to the request that creates"):
            await ask(client, [QUESTION], extra_body=more)


async def test_a_message_without_a_thread_cannot_be_continued(recorder, client_of):
    async with client_of(recorder("one" + END)) as (client, _):
        first = await ask(client, [QUESTION])
        more = {"thread": {"type": "continue", "previous_message_id": first.id}}
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await ask(client, [QUESTION], extra_body=more)
    assert unknown.value.body["error"]["details"] == {"error_code": "thread_not_found"}


async def test_a_stream_is_the_message_without_a_stream(recorder, client_of):
    turn = "<think>\nhm\n</think>\n\nI add." + CALL + END
    async with client_of(recorder(turn)) as (client, _):
        whole = await ask(client, [QUESTION], tools=TOOLS)
        kinds = []
        async with client.messages.stream(model="m", max_tokens=64, messages=[QUESTION], tools=TOOLS) as stream:
            async for event in stream:
                kinds.append(event.type)
            streamed = await stream.get_final_message()
    told = [block.model_dump(exclude={"id"}) for block in streamed.content]
    assert told == [block.model_dump(exclude={"id"}) for block in whole.content]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3


async def test_a_line_that_changes_with_each_request_keeps_the_prefix(recorder, client_of):
    async with client_of(recorder("one" + END, "two" + END)) as (client, session):
        for number in range(2):
            billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
            system = [billing, {"type": "text", "text": "Count.", "cache_control": {"type": "ephemeral"}}]
            history = [QUESTION, {"role": "assistant", "content": "one"}, QUESTION] if number else [QUESTION]
            await ask(client, history, system=system)
    (stream,) = session.trajectories()
    assert stream.num_turns == 2
    assert stream.messages[0] == {"role": "system", "content": "Count."}


async def test_a_stop_sequence_is_named_and_its_token_trained(recorder, client_of, ids_of):
    engine = recorder("one. STOP" + END)
    async with client_of(engine) as (client, session):
        answer = await ask(client, [QUESTION], stop_sequences=["STOP"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
    assert answer.content[0].text == "one."
    assert engine.params[0].stop_strings[-1] == "STOP"
    assert trained(session) == [ids_of("one. STOP" + END)]


async def test_a_turn_without_room_ends_with_max_tokens(recorder, client_of):
    async with client_of(recorder(CALL + END)) as (client, _):
        answer = await client.messages.create(model="m", max_tokens=3, messages=[QUESTION], tools=TOOLS)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)
    assert all(block.type == "text" for block in answer.content)


async def test_tokens_are_counted_as_the_next_prompt_has_them(recorder, client_of):
    async with client_of(recorder("one" + END)) as (client, session):
        for history in ([QUESTION], [QUESTION, {"role": "assistant", "content": "one"}, QUESTION]):
            counted = await client.messages.count_tokens(model="m", messages=history)
            assert counted.input_tokens == (await ask(client, history)).usage.input_tokens
    (stream,) = session.trajectories()
    assert stream.num_turns == 2


def image():
    png = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(png, "PNG")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png.getvalue()).decode()}
    return {"type": "image", "source": source}


def test_images_are_read_in_messages_and_in_results():
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    shown = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "see"}, image()]}
    again = {"type": "text", "text": "And?"}
    messages = [
        {"role": "user", "content": [image(), again]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [shown, again]},
    ]
    request = Anthropic().read(json.dumps({"messages": messages}).encode())
    assert [message["role"] for message in request.messages] == ["user", "assistant", "tool", "user"]
    assert request.messages[2]["content"][1]["image"].getpixel((0, 0)) == (255, 0, 0)
    assert (request.messages[2]["name"], request.messages[2]["tool_call_id"]) == ("look", "c")
    assert request.messages[3]["content"] == "And?"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "type 'document'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role 'tool'"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "I"}]}, "last message"),
        ({"messages": [QUESTION], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "service runs"),
        ({"messages": [QUESTION], "tool_choice": {"type": "some"}}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "base64"),
        ({"messages": []}, "messages"),
        ({"messages": [QUESTION], "system": [{"type": "document"}]}, "block of system has the type 'document'"),
        ({"messages": [QUESTION], "output_config": {"format": {"type": "json_schema"}}}, "no JSON Schema in `schema`"),
        (
            {"messages": [QUESTION], "output_format": {"type": "json_schema", "schema": {"type": "object"}}},
            "`output_format` is not supported here. Use `output_config.format`",
        ),
    ],
)
def test_content_that_is_not_known_is_an_error_that_names_it(body, problem):
    with pytest.raises(ApiError, match=problem):
        Anthropic().read(json.dumps(body).encode())


def test_unknown_fields_are_ignored():
    body = {"messages": [QUESTION], "metadata": {}, "context_management": {"edits": []}, "thinking": {"type": "x"}}
    assert Anthropic().read(json.dumps(body).encode()).messages == [QUESTION]


async def test_errors_have_the_types_of_the_client(recorder, client_of):
    async with client_of(recorder("one" + END), limits=Limits(max_turns=1, max_tokens=64)) as (client, _):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            await ask(client, [{"role": "user", "content": "word " * 100}])
        await ask(client, [QUESTION])
        with pytest.raises(anthropic.BadRequestError) as refused:
            await ask(client, [QUESTION, QUESTION])
        assert refused.value.body["error"]["type"] == "invalid_request_error"
        stranger = client.with_options(base_url=str(client.base_url).rsplit("/", 2)[0], api_key="none")
        with pytest.raises(anthropic.AuthenticationError):
            await ask(stranger, [QUESTION])
        found = [model.id async for model in client.models.list()]
    assert found == ["policy"]


async def test_what_is_not_served_is_an_error_in_the_shape_of_the_client(recorder, opened):
    async with opened(recorder("one" + END)) as (_, endpoint), httpx.AsyncClient() as client:
        headers = {"anthropic-version": "2023-06-01"}
        answer = await client.post(f"{endpoint.base_url}/messages/batches", json={}, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "not_found_error"
