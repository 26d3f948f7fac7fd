"""What looks like a call, but is not one, is refused with a reason."""

from __future__ import annotations

import pytest

from agentloop.rendering.formats import FORMATS
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall
from tests.agentloop.rendering.formats.test_formats import dsml, glm, pair, parse
from tests.agentloop.rendering.formats.written import WRITTEN

WITH_ARGUMENT = {
    **{name: written.replace("{}", '{"o": VALUE}') for name, written in WRITTEN.items()},
    "gemma4": "<|tool_call>call:f{o:VALUE}<tool_call|>",
    "glm": glm(pair("o", "VALUE")),
    "lfm2": "<|tool_call_start|>[f(o=VALUE)]<|tool_call_end|>",
    "lfm2_5": "<|tool_call_start|>[f(o=VALUE)]<|tool_call_end|>",
    "deepseek_v3_2": dsml('name="o" string="false">VALUE'),
    "minimax": '<minimax:tool_call><invoke name="f"><parameter name="o">VALUE</parameter></invoke></minimax:tool_call>',
    "qwen3_coder": "<tool_call><function=f><parameter=o>VALUE</parameter></function></tool_call>",
    "seed": "<seed:tool_call><function=f><parameter=o>VALUE</parameter></function></seed:tool_call>",
    "llama3": '{"name": "f", "parameters": {"o": VALUE}}',
    "harmony": '<|channel|>commentary to=functions.f <|message|>{"o": VALUE}<|call|>',
}
SCHEMA = {"type": "object", "properties": {"o": {"type": ["object", "number", "array"]}}}
NUMBERS = ({"type": "function", "function": {"name": "f", "parameters": SCHEMA}},)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_call_with_an_argument(name):
    (call,) = TurnParser(FORMATS.get(name)).parse(WITH_ARGUMENT[name].replace("VALUE", "[1.5]"), tools=NUMBERS).calls
    assert call == ToolCall("f", {"o": [1.5]}, call.id)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "[NaN]", "[1, -Infinity]", '{"a": NaN}'])
def test_numbers_that_are_not_json_never_reach_a_tool(name, word):
    (call,) = TurnParser(FORMATS.get(name)).parse(WITH_ARGUMENT[name].replace("VALUE", word), tools=NUMBERS).calls
    if isinstance(call, ToolCall):  # formats of raw text leave it text, which the tool's schema refuses
        assert call.arguments == {"o": word}
    else:
        assert "tool call cannot be read" in call.error


@pytest.mark.parametrize("name", FORMATS)
def test_no_key_of_an_object_is_dropped_in_silence(name):
    written = '{"a": 1, "a": 2}' if name != "gemma4" else "{a:1,a:2}"
    (call,) = TurnParser(FORMATS.get(name)).parse(WITH_ARGUMENT[name].replace("VALUE", written), tools=NUMBERS).calls
    if isinstance(call, ToolCall):
        assert call.arguments == {"o": written}
    else:
        assert "given twice" in call.error


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('name="x" string="false">[1, 2]', [1, 2]),
        ('name="x" string="false">true', True),
        ('name="x" string="true">1', "1"),
    ],
)
def test_dsml_says_itself_whether_an_unknown_parameter_is_text(value, expected):
    """As DeepSeek's own encoding_dsv32.py decodes it (deepseek-ai/DeepSeek-V3.2)."""
    (call,) = parse("deepseek_v3_2", dsml(value)).calls
    assert call.arguments == {"x": expected}


def test_dsml_value_that_is_not_the_json_it_claims_to_be_is_refused():
    (call,) = parse("deepseek_v3_2", dsml('name="x" string="false">[1, ')).calls
    assert 'has string="false", but is not JSON' in call.error


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=s>\na\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        ("seed", "<seed:tool_call><function=f><parameter=s>a<parameter=i>1</parameter></function></seed:tool_call>"),
        ("glm", glm("<arg_key>s</arg_key>\n<arg_value>a\n" + pair("i", "1"))),
        ("deepseek_v3_2", dsml('name="s" string="true">a\n<｜DSML｜parameter name="i" string="false">1')),
    ],
)
def test_missing_end_of_a_parameter_does_not_swallow_the_next(name, text):
    (call,) = parse(name, text).calls
    assert isinstance(call, InvalidCall)
    assert "parameter 's' is not closed by" in call.error
    (other,) = parse(name, text.replace("=i>", "=zz>").replace(">i<", ">zz<").replace('"i"', '"zz"')).calls
    assert isinstance(other, ToolCall), "a parameter that the tool does not have is text, such as code"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minimax", 'I look. <invoke name="f"><parameter name="s">a</parameter></invoke>'),
        ("seed", "I look. <function=f><parameter=s>a</parameter></function>"),
        ("deepseek_v3_2", 'I look. <｜DSML｜invoke name="f"></｜DSML｜invoke>'),
    ],
)
def test_call_without_its_wrapper_gets_feedback(name, text):
    parsed = parse(name, text)
    (call,) = parsed.calls
    assert isinstance(call, InvalidCall)
    assert "is not run, because it is not between" in call.error
    assert (call.name, parsed.content) == ("f", "I look.")


@pytest.mark.parametrize(
    "prose", ["I will now look it up.", "f is what I need\n", "let me call f\n<arg_key>s</arg_key>"]
)
def test_glm_does_not_read_prose_as_a_name(prose):
    (call,) = parse("glm", f"<tool_call>{prose}</tool_call>").calls
    assert isinstance(call, InvalidCall)


def test_harmony_message_to_the_assistant_is_no_call():
    parsed = parse("harmony", "<|channel|>commentary to=assistant<|message|>Note.<|end|>")
    assert (parsed.calls, parsed.content) == ((), "Note.")


@pytest.mark.parametrize("written", ["<|channel|>final Hello there", "<|channel|>final\nHello there"])
def test_harmony_answer_without_a_message_token_keeps_its_text(written):
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    for text in (written, thought + written):
        parsed = parse("harmony", text)
        assert (parsed.calls, parsed.content) == ((), "Hello there"), text
