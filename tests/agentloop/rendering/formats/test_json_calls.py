"""Calls as JSON in tags."""

import json

import pytest

from agentloop.rendering.formats import call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall

parse = TurnParser(call_format("hermes")).parse
GOOD = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def only_invalid(text):
    turn = parse(text)
    assert len(turn.calls) == 1
    assert isinstance(turn.calls[0], InvalidCall)
    return turn.calls[0]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        '<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>',
        '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>',
        '<tool_call>[{"name":"f","arguments":{"a":1}}]</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n\n',
    ],
    ids=["canonical", "parameters", "encoded twice", "list", "no closing tag", "no closing tag, line breaks"],
)
def test_single_call_is_parsed(text):
    turn = parse(text)
    assert turn.calls == (ToolCall("f", {"a": 1}, "call_0"),)
    assert turn.content == ""


def test_text_around_calls_is_content_and_order_is_kept():
    second = GOOD.replace('"f"', '"g"')
    turn = parse(f"Let me look.\n{GOOD}\nand {second} Done.", call_id_prefix="t3_")
    assert turn.calls == (ToolCall("f", {"a": 1}, "t3_0"), ToolCall("g", {"a": 1}, "t3_1"))
    assert turn.content == "Let me look.\n\nand  Done."


@pytest.mark.parametrize("between", ["", "\n"])
def test_two_objects_in_one_tag_are_handled(between):
    turn = parse('<tool_call>{"name":"f","arguments":{}}' + between + '{"name":"g","arguments":{"b":2}}</tool_call>')
    assert turn.calls == (ToolCall("f", {}, "call_0"), ToolCall("g", {"b": 2}, "call_1"))


@pytest.mark.parametrize("code", ["x = '</tool_call>'", "<tool_call>", "</think>", "<think>", 'a\n"b"\\ {}', "}}"])
def test_tags_inside_strings_stay_text(code):
    text = f"<tool_call>\n{json.dumps({'name': 'run', 'arguments': {'code': code}})}\n</tool_call>rest"
    turn = parse(text)
    assert turn.calls == (ToolCall("run", {"code": code}, "call_0"),)
    assert turn.content == "rest"
    assert turn.reasoning is None


def test_unclosed_tag_before_the_next_call_is_handled():
    turn = parse('<tool_call>{"name":"f"}\n' + GOOD)
    assert turn.calls == (ToolCall("f", {}, "call_0"), ToolCall("f", {"a": 1}, "call_1"))


@pytest.mark.parametrize("arguments", ["null", '""', "{}"])
def test_call_without_arguments_is_handled(arguments):
    text = f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>'
    assert parse(text).calls == (ToolCall("f", {}, "call_0"),)


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ('{"name": "f", "arguments": {"a": 1}', "Expecting ',' delimiter"),
        ('{"name": "f", "arguments": {"a": 1}}}', "text after the JSON object"),
        ('{"name": "f", "arguments": {"code": "a\nb"}}', "Invalid control character"),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 3, "arguments": {}}', 'no "name"'),
        ('{"name": "f", "arguments": [1]}', '"arguments" is a list'),
        ('{"name": "f", "arguments": "[1]"}', '"arguments" is a list'),
        ('{"name": "f", "arguments": "{} x"}', "text after"),
        ('{"name": "f", "arguments": "run it"}', "Expecting value"),
        ('"f"', "a string, not an object"),
        ("[]", "has no calls"),
        ("", "no JSON object"),
        ("f(a=1)", "Expecting value"),
        ('{"name": "f", "arguments": {"a": "\\ud83d"}}', "surrogate"),
        ('{"name": "f", "arguments": {"a": %s}}' % ("9" * 5000), "too large"),
        ('{"name": "f", "arguments": {"a": %s' % ("[" * 100_000), "too large"),
    ],
)
def test_malformed_calls_get_feedback(inside, why):
    text = f"<tool_call>\n{inside}\n</tool_call>"
    call = only_invalid(text)
    assert why in call.error
    assert '{"name": "TOOL", "arguments": {...}}' in call.error
    assert len(call.error) < 400
    assert call.raw == text
    assert call.id == "call_0"


def test_malformed_call_does_not_affect_the_others():
    turn = parse('<tool_call>{"name": </tool_call>' + GOOD + "<tool_call>{oh" + GOOD)
    kinds = [type(call) for call in turn.calls]
    assert kinds == [InvalidCall, ToolCall, InvalidCall, ToolCall]
    assert [call.id for call in turn.calls] == ["call_0", "call_1", "call_2", "call_3"]
    assert turn.message()["tool_calls"] == [turn.calls[1].as_dict(), turn.calls[3].as_dict()]


def test_unclosed_tag_followed_by_text_is_rejected():
    assert "</tool_call> is missing" in only_invalid('<tool_call>{"name":"f"} and so on').error


@pytest.mark.parametrize("text", [GOOD, GOOD.removesuffix("</tool_call>"), GOOD[:-30], "<tool_call>"])
def test_truncated_turn_has_no_calls(text):
    turn = parse("So: " + text, complete=False)
    assert turn.calls == ()
    assert turn.content == "So: " + text.strip()


@pytest.mark.parametrize(("depth", "kind"), [(62, ToolCall), (63, InvalidCall)])
def test_nesting_depth_is_limited(depth, kind):
    code = json.dumps({"name": "f", "arguments": {"a": "[{", "b": 0}}).replace("0", "[" * depth + "]" * depth)
    assert [type(call) for call in parse(f"<tool_call>{code}</tool_call>").calls] == [kind]
