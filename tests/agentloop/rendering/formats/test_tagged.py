"""Calls as XML-like tags with raw values."""

import pytest

from agentloop.rendering.formats import call_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall

parse = TurnParser(call_format("qwen3_coder")).parse
PROPERTIES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "n": {"type": "number"},
    "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"type": "integer"}},
    "o": {"$ref": "#/$defs/Point"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["string", "integer"]},
    "unit": {"enum": ["C", "F", 3]},
    "any": {},
}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "$defs": {"Point": {"type": "object"}}}
TOOLS = ({"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},)


def write(name="f", **values):
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("s", "null", "null"),
        ("s", "3", "3"),
        ("s", "", ""),
        ("s", "  two\n\nlines \n", "  two\n\nlines \n"),
        ("i", "3", 3),
        ("i", " -3 ", -3),
        ("i", "3.5", "3.5"),
        ("i", "true", "true"),
        ("i", "null", "null"),
        ("n", "3.5", 3.5),
        ("n", "3", 3),
        ("n", "three", "three"),
        ("b", "true", True),
        ("b", "False", False),
        ("b", "yes", "yes"),
        ("b", "1", "1"),
        ("l", "[1, 2]", [1, 2]),
        ("l", "1, 2", "1, 2"),
        ("o", '{"x": 1}', {"x": 1}),
        ("o", "[1]", "[1]"),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "nil", "nil"),
        ("either", "3", 3),
        ("either", "3.5", "3.5"),
        ("unit", "C", "C"),
        ("unit", "3", 3),
        ("unit", "K", "K"),
        ("any", "[1]", [1]),
        ("any", "free text", "free text"),
        ("unknown", "1", "1"),
    ],
)
def test_values_follow_the_schema(key, text, value):
    turn = parse(write(**{key: text}), tools=TOOLS)
    assert turn.calls == (ToolCall("f", {key: value}, "call_0"),)
    assert type(turn.calls[0].arguments[key]) is type(value)


def test_without_schemas_values_are_text():
    assert parse(write(i="3", b="true")).calls == (ToolCall("f", {"i": "3", "b": "true"}, "call_0"),)
    assert parse(write("other", i="3"), tools=TOOLS).calls == (ToolCall("other", {"i": "3"}, "call_0"),)


@pytest.mark.parametrize(
    "code",
    [
        'if a>b: print("</parameter>")',
        "x = '</function>'",
        "'</tool_call>'",
        "s = '<parameter=s>'",
        "'<tool_call>'",
        "</parameter> </parameter>",
        "<think>",
        "'</parameter></function>'",
    ],
)
def test_tags_inside_code_stay_text(code):
    turn = parse(write(s=code, i="1") + "rest", tools=TOOLS)
    assert turn.calls == (ToolCall("f", {"s": code, "i": 1}, "call_0"),)
    assert turn.content == "rest"


def test_several_calls_are_parsed():
    two = "<tool_call><function=f></function><function=g><parameter=x>1</parameter></function></tool_call>"
    assert parse(two).calls == (ToolCall("f", {}, "call_0"), ToolCall("g", {"x": "1"}, "call_1"))
    turn = parse(f"a {write()} b {write('g')} c")
    assert [call.name for call in turn.calls] == ["f", "g"]
    assert turn.content == "a  b  c"


@pytest.mark.parametrize("text", [write(s="1").removesuffix("</tool_call>"), write(s="1").removeprefix("<tool_call>")])
def test_missing_outer_tag_is_accepted(text):
    turn = parse(text)
    assert turn.calls == (ToolCall("f", {"s": "1"}, "call_0"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>\n<function=f>\n<parameter=s>\nabc", "'s' is not closed"),
        ("<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n", "'s' is not closed"),
        ("<tool_call>\n<function=f>\n</tool_call>", "'f' is not closed"),
        ("<tool_call>\nf(1)\n</tool_call>", "no function is named"),
        ('<tool_call>\n{"name": "f"}\n</tool_call>', "no function is named"),
        (write().replace("</tool_call>", "and more"), "</tool_call> is missing"),
        (
            "<tool_call><function=f><parameter=s>1</parameter><parameter=s>2</parameter></function></tool_call>",
            "given twice",
        ),
    ],
)
def test_malformed_calls_get_feedback(text, why):
    turn = parse(text, tools=TOOLS)
    assert [type(call) for call in turn.calls] == [InvalidCall]
    assert why in turn.calls[0].error
    assert "<parameter=KEY>" in turn.calls[0].error
    assert turn.calls[0].raw == text


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_truncated_turn_has_no_calls(length):
    text = write(s="abc")[:-length]
    turn = parse(text, complete=False, tools=TOOLS)
    assert turn.calls == ()
    assert turn.content == text.strip()


def test_incomplete_character_does_not_become_a_list():
    (call,) = parse(write(l='["\\ud83d"]'), tools=TOOLS).calls
    assert call.arguments == {"l": '["\\ud83d"]'}
