"""Bodies with one wrong value: the client gets an error that says so, never a failure of the gateway."""

import asyncio
import json
from copy import deepcopy
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import Limits
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.gateway.application import application
from agentloop.gateway.session import Session
from agentloop.gateway.turns.messages import arguments_of
from agentloop.types.requests import Sampling

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CALLED = {"name": "f", "arguments": '{"a": "b"}'}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "bob"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": CALLED}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "max_tokens": 9,
    "temperature": 1.0,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 3,
    "stop": ["z"],
    "n": 1,
    "logprobs": True,
    "stream_options": {"include_usage": True},
}
MESSAGES = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}]}],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
    "tool_choice": {"type": "none"},
    "stop_sequences": ["z"],
    "output_config": {"effort": "high"},
    "thread": {"type": "create"},
}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "namespace": "s", **CALLED},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "text"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": [{"type": "input_text", "text": "x"}]},
    ],
    "tools": [
        {"type": "custom", "name": "g", "description": "d"},
        {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
    ],
    "tool_choice": "none",
    "max_output_tokens": 9,
    "store": True,
    "text": {"format": {"type": "text"}},
}
BODIES = {"/chat/completions": CHAT, "/messages": MESSAGES, "/responses": RESPONSES}


def paths_in(value):
    """The keys that lead to each value in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(key, *path) for key, item in inside for path in [(), *paths_in(item)]]


def changed(body, path, value):
    body = deepcopy(body)
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return body


PLACES = [(route, path) for route, body in BODIES.items() for path in paths_in(body)]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["type", "text"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "a"]), inner),
    max_leaves=3,
)


class Engine(ScriptedEngine):
    """Ignores stop strings, for which it would need a tokenizer."""

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        params = replace(params, stop_strings=())
        return await super().generate(prompt, params, trajectory_id=trajectory_id, images=images)


@pytest.fixture(scope="module")
def post(renderer):
    """Send the text of a body to a route, and get the answer."""
    engine = Engine([renderer.encode("Hello.<|im_end|>")])
    with asyncio.Runner() as runner:

        async def answer(route, body):
            session = Session(engine, renderer, limits=Limits(), sampling=Sampling(), trajectory_id="t")
            served = httpx.ASGITransport(application({"k": session}, renderer, "m"), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=served, base_url="http://gateway") as client:
                return await client.post(f"/k/v1{route}", content=body)

        yield lambda route, body: runner.run(answer(route, body))


@pytest.mark.parametrize("route", BODIES)
def test_the_bodies_are_valid_without_a_change(post, route):
    answer = post(route, json.dumps(BODIES[route]))
    assert answer.status_code == 200, answer.text


@given(place=st.sampled_from(PLACES), value=json_values)
@settings(max_examples=400, deadline=None)
def test_any_other_value_is_taken_or_is_an_error_of_the_client(post, place, value):
    route, path = place
    answer = post(route, json.dumps(changed(BODIES[route], path, value), allow_nan=False))
    assert answer.status_code in (200, 400), answer.text
    assert answer.status_code == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "path", "value", "problem"),
    [
        ("/chat/completions", ("messages", 2, "tool_calls"), 5, "`tool_calls` of messages[2] must be a list of"),
        ("/messages", ("messages", 2, "content", 0, "content"), 5, "`content` of messages[2] must be a list of"),
        (
            "/messages",
            ("messages", 1, "content", 2),
            {"type": "tool_use"},
            "messages[1].content[2] has no `name`. Give",
        ),
        ("/messages", ("messages", 0, "content"), ["hi"], "messages.0.content.0: Input should be an object."),
        ("/messages", ("messages", 0, "content"), 5, "messages.0.content: Input should be a valid string, or: Input"),
        ("/responses", ("input",), ["hi"], "input.0: Input should be an object."),
        ("/responses", ("input", 1, "content"), "abc", "`content` of input[1] must be a list of objects."),
        ("/responses", ("input", 1, "content"), ["abc"], "`content` of input[1] must be a list of objects."),
        ("/responses", ("input", 2, "content"), 5, "`content` of input[2] must be a list of objects."),
        ("/responses", ("input", 3), {"type": "function_call"}, "input[3] has no `name`. Give"),
        ("/responses", ("tools", 1, "tools"), 5, "`tools` of tools[1] must be a list of objects."),
        ("/responses", ("tools", 1, "tools"), ["a"], "`tools` of tools[1] must be a list of objects."),
        ("/responses", ("tools", 0), {"type": "function"}, "tools[0] has no `name`. Give"),
        ("/chat/completions", ("messages", 1, "content", 0, "text"), None, "`text` in messages[1] must be a text."),
        (
            "/chat/completions",
            ("messages", 2, "reasoning_content"),
            {"a": "b"},
            "`reasoning_content` in messages[2] must",
        ),
        ("/messages", ("system", 0, "text"), None, "`text` in system must be a text."),
        ("/messages", ("messages", 1, "content", 0, "thinking"), None, "`thinking` in messages[1] must be a text."),
        ("/messages", ("messages", 1, "content", 1, "text"), ["I"], "`text` in messages[1] must be a text."),
        ("/messages", ("messages", 2, "content", 0, "content", 0, "text"), 5, "`text` in messages[2] must be a text."),
        ("/responses", ("input", 0, "content", 0, "text"), None, "`text` in input[0] must be a text."),
        ("/responses", ("input", 1, "content", 0, "text"), None, "`text` in input[1] must be a text."),
        ("/responses", ("input", 2, "content", 0, "text"), 5, "`text` in input[2] must be a text."),
        (
            "/responses",
            ("tools", 0),
            {"type": "function", "function": {"name": "f"}},
            "tools[0] has no `name`. Put the fields of `function` next to `type`.",
        ),
    ],
)
def test_the_error_names_what_is_wrong(post, route, path, value, problem):
    answer = post(route, json.dumps(changed(BODIES[route], path, value)))
    assert answer.status_code == 400
    assert problem in answer.json()["error"]["message"]


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 700 + "1" + "}" * 700, '{"a": "' + "[" * 700 + '"}'])
def test_arguments_that_are_nested_deep_are_no_error(post, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = post("/chat/completions", json.dumps(changed(CHAT, ("messages", 2, "tool_calls"), [call])))
    assert answer.status_code == 200


def test_only_arguments_that_are_nested_too_deep_stay_text():
    deep = '{"a":' * 201 + "1" + "}" * 201
    assert arguments_of(deep) == deep
    assert arguments_of(deep[5:-1]) == json.loads(deep[5:-1])
    assert arguments_of('{"a": "\\"' + "[" * 700 + '"}') == {"a": '"' + "[" * 700}
