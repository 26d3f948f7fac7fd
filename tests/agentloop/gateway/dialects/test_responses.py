"""The Responses API through OpenAI's own client."""

import json

import openai
import pytest

from agentloop import Limits
from agentloop.gateway.dialects.responses import Responses
from agentloop.gateway.turns.errors import ApiError

pytestmark = pytest.mark.slow

END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"b": 3, "a": 2}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
FIND = '<tool_call>\n{"name": "docs__find", "arguments": {"q": "x"}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]
THOUGHT = "<think>\nhm\n</think>\n\n"


def trained(session):
    return [stream.token_ids[stream.loss_mask].tolist() for stream in session.trajectories()]


async def ask(client, given, **options):
    return await client.responses.create(model="m", input=given, **options)


async def test_items_that_are_sent_back_are_one_stream(recorder, serving, ids_of):
    turns = [THOUGHT + "I add." + CALL + END, "It is 5." + END]
    async with serving(recorder(*turns)) as (client, session):
        items = [{"role": "user", "content": "2 + 3?"}]
        first = await ask(client, items, tools=TOOLS, instructions="Be brief.", store=False)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        call = first.output[-1]
        assert json.loads(call.arguments) == {"a": 2, "b": 3}
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "5"})
        last = await ask(client, items, tools=TOOLS, instructions="Be brief.", store=False)
    assert (last.output_text, last.status) == ("It is 5.", "completed")
    assert trained(session) == [ids_of(turns[0]) + ids_of(turns[1])]
    (stream,) = session.trajectories()
    assert last.usage.total_tokens == len(stream)


async def test_a_response_is_continued_by_its_name(recorder, serving, ids_of):
    turns = [THOUGHT + CALL + END, "It is 5." + END]
    async with serving(recorder(*turns)) as (client, session):
        first = await ask(client, "2 + 3?", tools=TOOLS, instructions="Be brief.")
        output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "5"}
        options = {"tools": TOOLS, "instructions": "Be brief.", "previous_response_id": first.id}
        last = await ask(client, [output], **options)
        assert last.previous_response_id == first.id
        with pytest.raises(openai.BadRequestError) as unknown:
            await ask(client, [output], previous_response_id="resp_none")
        assert unknown.value.code == "previous_response_not_found"
        unkept = await ask(client, "x", store=False)
        with pytest.raises(openai.BadRequestError):
            await ask(client, "y", previous_response_id=unkept.id)
    assert ids_of(turns[0]) + ids_of(turns[1]) in trained(session)


async def test_a_stream_is_the_response_without_a_stream(recorder, serving):
    async with serving(recorder(THOUGHT + "I add." + CALL + END)) as (client, _):
        whole = await ask(client, "2 + 3?", tools=TOOLS)
        kinds, text, arguments = [], "", ""
        numbers = []
        async with client.responses.stream(model="m", input="2 + 3?", tools=TOOLS) as stream:
            async for event in stream:
                kinds.append(event.type)
                numbers.append(event.sequence_number)
                text += event.delta if event.type == "response.output_text.delta" else ""
                arguments += event.delta if event.type == "response.function_call_arguments.delta" else ""
            streamed = await stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output[0].content[0].text == whole.output[0].content[0].text == "hm"
    assert text == whole.output_text == streamed.output_text == "I add."
    assert arguments == whole.output[-1].arguments == streamed.output[-1].arguments
    assert streamed.usage == whole.usage
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert numbers == sorted(set(numbers))
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3


async def test_a_cut_turn_is_incomplete(recorder, serving):
    async with serving(recorder("It is 5, I think." + END)) as (client, _):
        whole = await ask(client, "2 + 3?", max_output_tokens=3)
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        async for event in await ask(client, "2 + 3?", max_output_tokens=3, stream=True):
            last = event
    assert (last.type, last.response.output_text) == ("response.incomplete", whole.output_text)


async def test_custom_tools_and_namespaces_are_called_as_they_were_declared(recorder, serving, ids_of):
    turns = [PATCH + FIND + END, "Done." + END]
    tools = [
        {"type": "custom", "name": "patch", "description": "Change files.", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "find", "parameters": {}}]},
    ]
    async with serving(recorder(*turns)) as (client, session):
        first = await ask(client, "Do it.", tools=tools)
        patch, find = first.output
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin")
        assert (find.type, find.name, find.namespace) == ("function_call", "find", "docs")
        items = [{"role": "user", "content": "Do it."}, *(i.model_dump(exclude_none=True) for i in first.output)]
        items.append({"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "ok"})
        items.append({"type": "function_call_output", "call_id": find.call_id, "output": "ok"})
        await ask(client, items, tools=tools)
    assert trained(session) == [ids_of(turns[0]) + ids_of(turns[1])]


def test_a_call_of_a_custom_tool_may_be_demanded():
    body = {"input": "x", "tools": [{"type": "custom", "name": "c"}], "tool_choice": {"type": "custom", "name": "c"}}
    form = Responses().read(json.dumps(body).encode()).form
    assert form.must_call
    assert form.callable == {"c"}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"input": [{"type": "web_search_call"}]}, "type 'web_search_call'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "role 'tool'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "type 'input_file'"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "service runs"),
        ({"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}, "no JSON Schema in `schema`"),
        ({"input": "x", "tool_choice": "some"}, "tool_choice"),
        ({"input": []}, "input"),
    ],
)
def test_content_that_is_not_known_is_an_error_that_names_it(body, problem):
    with pytest.raises(ApiError, match=problem):
        Responses().read(json.dumps(body).encode())


@pytest.mark.parametrize(("sent", "reported"), [({}, True), ({"parallel_tool_calls": False}, False)])
async def test_parallel_calls_are_reported_as_the_client_asked(recorder, serving, sent, reported):
    async with serving(recorder("one" + END)) as (client, _):
        answer = await ask(client, "2 + 3?", tools=TOOLS, **sent)
    assert answer.parallel_tool_calls is reported


async def test_errors_have_the_types_of_the_client(recorder, serving):
    async with serving(recorder("one" + END), limits=Limits(max_turns=1, max_tokens=64)) as (client, _):
        with pytest.raises(openai.BadRequestError) as long:
            await ask(client, "word " * 100)
        assert long.value.code == "context_length_exceeded"
        await ask(client, "2 + 3?")
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, "4?", stream=True)
        assert refused.value.code == "max_turns"
