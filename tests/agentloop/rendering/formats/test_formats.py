"""Well-formed and malformed calls of each model family."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.rendering.formats import NAMES, call_format, detect_format
from agentloop.rendering.parsing import TurnParser
from agentloop.types.messages import InvalidCall, ToolCall

PROPERTIES = {"s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"}, "l": {"type": "array"}}
TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}},)


def parse(name, text, **options):
    return TurnParser(call_format(name)).parse(text, tools=TOOLS, **options)


def glm(inside):
    return f"<tool_call>f\n{inside}\n</tool_call>"


def pair(key, value):
    return f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"


def kimi(*calls):
    inside = "".join(f"<|tool_call_begin|>{call}<|tool_call_end|>" for call in calls)
    return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"


def deepseek(*calls):
    inside = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


def dsml(*parameters):
    inside = "".join(f"<｜DSML｜parameter {item}</｜DSML｜parameter>\n" for item in parameters)
    return f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{inside}</｜DSML｜invoke>\n</｜DSML｜function_calls>'


ARGUMENT = "<|tool_call_argument_begin|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("glm", glm(pair("s", "a b") + "\n" + pair("i", "3")), [("f", {"s": "a b", "i": 3})]),
        ("glm", "<tool_call>f" + pair("s", " kept ") + "</tool_call>", [("f", {"s": " kept "})]),
        ("glm", glm(pair("s", "x</arg_value> y")), [("f", {"s": "x</arg_value> y"})]),
        ("glm", "<tool_call>f</tool_call>", [("f", {})]),
        ("glm", glm(pair("b", "true")) + glm(pair("i", "x")), [("f", {"b": True}), ("f", {"i": "x"})]),
        ("kimi", kimi(f'functions.f:0{ARGUMENT}{{"s": "a"}}'), [("f", {"s": "a"})]),
        ("kimi", kimi(f"functions.f:0{ARGUMENT}{{}}", f'f:1{ARGUMENT}{{"i": 1}}'), [("f", {}), ("f", {"i": 1})]),
        ("kimi", kimi(f'functions.a.b:0{ARGUMENT}{{"s": "<|tool_call_end|>"}}'), [("a.b", {"s": "<|tool_call_end|>"})]),
        ("deepseek_v3_1", deepseek('f<｜tool▁sep｜>{"s": "a"}'), [("f", {"s": "a"})]),
        ("deepseek_v3_1", deepseek("f<｜tool▁sep｜>{}", "g<｜tool▁sep｜>{}"), [("f", {}), ("g", {})]),
        ("deepseek_r1", deepseek('function<｜tool▁sep｜>f\n```json\n{"i": 1}\n```'), [("f", {"i": 1})]),
        ("deepseek_v3_2", dsml('name="s" string="true">3', 'name="i" string="false">3'), [("f", {"s": "3", "i": 3})]),
        ("deepseek_v3_2", dsml('name="l" string="false">[1, 2]'), [("f", {"l": [1, 2]})]),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">two\nlines</parameter>\n</invoke>\n'
            '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
            [("f", {"s": "two\nlines"}), ("g", {})],
        ),
        (
            "seed",
            "<seed:tool_call>\n<function=f>\n<parameter=b>true</parameter>\n</function>\n</seed:tool_call>",
            [("f", {"b": True})],
        ),
        (
            "gemma4",
            '<|tool_call>call:f{s:<|"|>a,b}<|"|>,i:3,l:[1,2]}<tool_call|>',
            [("f", {"s": "a,b}", "i": 3, "l": [1, 2]})],
        ),
        (
            "gemma4",
            "<|tool_call>call:f{o:{a:null,b:[]},b:false,n:-1.5e3}<tool_call|>",
            [("f", {"o": {"a": None, "b": []}, "b": False, "n": -1500.0})],
        ),
        ("gemma4", "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>", [("f", {}), ("g", {})]),
        (
            "lfm2",
            "<|tool_call_start|>[f(s='a)', i=-1), g()]<|tool_call_end|>",
            [("f", {"s": "a)", "i": -1}), ("g", {})],
        ),
        ("lfm2", '<|tool_call_start|>[a.b(l=["x", true, null])]<|tool_call_end|>', [("a.b", {"l": ["x", True, None]})]),
        (
            "lfm2",
            "<|tool_call_start|>[f(s='<|tool_call_end|>'), g()]<|tool_call_end|>",
            [("f", {"s": "<|tool_call_end|>"}), ("g", {})],
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(l=(1, 'a'), o={1: 2})]<|tool_call_end|>",
            [("f", {"l": [1, "a"], "o": {"1": 2}})],
        ),
        (
            "gemma4",
            "<|tool_call>call:f{o:{New York:1,:2, a b :3}}<tool_call|>",
            [("f", {"o": {"New York": 1, "": 2, "a b": 3}})],
        ),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"s": "]"}}]', [("f", {"s": "]"})]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"i": 1}[TOOL_CALLS]g[ARGS]{}', [("f", {"i": 1}), ("g", {})]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"i": 1}', [("f", {"i": 1})]),
        ("llama3", '{"name": "f", "parameters": {"s": "a"}}', [("f", {"s": "a"})]),
        (
            "llama3",
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
            [("f", {}), ("g", {})],
        ),
        ("llama3", '{"name": "f", "arguments": "{\\"i\\": 1}"}', [("f", {"i": 1})]),
        ("harmony", f'{CALL}{{"s": "a"}}', [("f", {"s": "a"})]),
        ("harmony", ' to=functions.f<|channel|>commentary json<|message|>{"i": 1}', [("f", {"i": 1})]),
        ("harmony", f"{CALL}", [("f", {})]),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}, {"name": "g"}]</TOOLCALL>', [("f", {}), ("g", {})]),
        ("phi", '<|tool_call|>[{"name": "f", "arguments": {"i": 1}}]<|/tool_call|>', [("f", {"i": 1})]),
    ],
)
def test_calls_are_parsed(name, text, calls):
    parsed = parse(name, text)
    assert all(isinstance(call, ToolCall) for call in parsed.calls), parsed
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert parsed.content == ""


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("glm", "<tool_call></tool_call>", "no function is named"),
        ("glm", glm("<arg_key>s</arg_key>\n<arg_value>a"), "'s' is not closed"),
        ("glm", glm(pair("s", "1") + pair("s", "2")), "given twice"),
        ("glm", glm("just words"), "</tool_call> is missing"),
        ("kimi", kimi(f"functions.f:0{ARGUMENT}{{"), "Expecting property name"),
        ("glm", "<tool_call> </tool_call>", "no function is named"),
        ("kimi", kimi("functions.f:0"), "no function is named"),
        ("kimi", kimi(f"functions.f:0{ARGUMENT}[1]"), "is a list, not an object"),
        ("deepseek_v3_1", deepseek("f<｜tool▁sep｜>{} and more"), "is missing"),
        ("deepseek_v3_1", deepseek(" <｜tool▁sep｜>{}"), "no function is named"),
        ("deepseek_r1", deepseek("function<｜tool▁sep｜>f\n{}"), "no function is named"),
        ("minimax", '<minimax:tool_call><invoke name="f"><parameter name="s">a</invoke>', "'s' is not closed"),
        ("gemma4", '<|tool_call>call:f{s:<|"|>open}<tool_call|>', "not closed"),
        ("gemma4", "<|tool_call>call:f{s:word}<tool_call|>", "there is no value"),
        ("gemma4", "<|tool_call>call:f{s:1,s:2}<tool_call|>", "given twice"),
        ("gemma4", f"<|tool_call>call:f{{l:{'[' * 99}}}<tool_call|>", "nested too deeply"),
        (
            "hermes",
            f'<tool_call>{{"name": "f", "arguments": {{"l": {"[" * 99}{"]" * 99}}}}}</tool_call>',
            "nested too deeply",
        ),
        ("gemma4", f"<|tool_call>call:f{{i:{'9' * 5000}}}<tool_call|>", "too many digits"),
        ("gemma4", "<|tool_call>f()<tool_call|>", "no function is named"),
        ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "not a call with named arguments"),
        ("lfm2", "<|tool_call_start|>[f(s=open('x'))]<|tool_call_end|>", "not a value"),
        ("lfm2", "<|tool_call_start|>[f(<|tool_call_end|>", "it is not valid Python"),
        ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>", "its list has no calls"),
        ("lfm2", "<|tool_call_start|>[f(s=1, s=2)]<|tool_call_end|>", "given twice"),
        ("lfm2", "<|tool_call_start|>[f(s='\\ud83d')]<|tool_call_end|>", "half of a surrogate pair"),
        ("lfm2", f"<|tool_call_start|>[f(s={'-' * 600}1)]<|tool_call_end|>", "nested too deeply"),
        ("lfm2", f"<|tool_call_start|>[f{'()' * 700}]<|tool_call_end|>", "nested too deeply"),
        ("mistral", "[TOOL_CALLS]f", "Expecting value"),
        ("mistral", "[TOOL_CALLS][]", "its list has no calls"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}] and more', "text after the JSON"),
        ("llama3", '<|python_tag|>print("hi")', "Expecting value"),
        ("llama3", '{"name": "f", "parameters": {}', "cannot be read"),
        ("harmony", f"{CALL}{{", "Expecting property name"),
        ("harmony", f"{CALL}{{}} {{}}", "text after the JSON object"),
    ],
)
def test_malformed_calls_get_an_explanation(name, text, why):
    parsed = parse(name, text)
    assert [type(call) for call in parsed.calls] == [InvalidCall], parsed
    assert why in parsed.calls[0].error
    assert "Write" in parsed.calls[0].error


@pytest.mark.parametrize(
    ("name", "text", "content", "reasoning"),
    [
        ("llama3", '{"answer": 42}', '{"answer": 42}', None),
        ("llama3", "[1, 2]", "[1, 2]", None),
        ("llama3", "{not JSON", "{not JSON", None),
        ("llama3", 'So: {"name": "f", "parameters": {}}', 'So: {"name": "f", "parameters": {}}', None),
        (
            "harmony",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42",
            "42",
            "hm",
        ),
        ("harmony", "<|channel|>commentary<|message|>I look.<|end|>", "I look.", None),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>comm", "", "hm"),
        ("harmony", " to=functions.f<|channel|>commentary", "", None),
        ("harmony", "words without a channel", "words without a channel", None),
        ("seed", "<seed:think>hm</seed:think>42", "42", "hm"),
        ("gemma4", "<|channel>thought\nhm<channel|>42", "42", "hm"),
        ("mistral", "[THINK]hm[/THINK]42", "42", "hm"),
        ("glm", "\n<think>hm <tool_call>f</tool_call></think>\n42", "42", "hm <tool_call>f</tool_call>"),
    ],
)
def test_content_and_thinking_are_separated(name, text, content, reasoning):
    parsed = parse(name, text)
    assert (parsed.content, parsed.reasoning, parsed.calls) == (content, reasoning, ())


def test_harmony_call_after_thinking_is_parsed():
    parsed = parse("harmony", f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{CALL}{{}}")
    assert (parsed.reasoning, parsed.content, len(parsed.calls)) == ("hm", "", 1)


def test_call_ids_have_the_form_that_templates_accept():
    both = parse("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]').calls
    assert len({call.id for call in both}) == 2
    assert all(len(call.id) == 9 and call.id.isalnum() for call in both)
    assert parse("kimi", kimi(f"functions.f:7{ARGUMENT}{{}}")).calls[0].id == "functions.f:7"
    own = ("[TOOL_CALLS]f[CALL_ID]aB3defghi[ARGS]{}", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "aB3defghi"}]')
    for text in own:
        assert parse("mistral", text).calls[0].id == "aB3defghi"
        (call,) = parse("mistral", text.replace("aB3defghi", "call_0")).calls
        assert len(call.id) == 9


@pytest.mark.parametrize("name", NAMES)
def test_format_is_detected_from_template_markers(name):
    found = detect_format(" ".join(call_format(name).signs))
    assert found is not None
    assert found.name == name


def test_unknown_format_raises():
    with pytest.raises(UserError, match="Did you mean 'harmony'"):
        call_format("harmoni")
    assert detect_format("nothing of calls") is None


SHARDS = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=f>",
    "</function>",
    "<parameter=s>",
    "</parameter>",
    '<invoke name="f">',
    "</invoke>",
    '<parameter name="s">',
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<seed:tool_call>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    ARGUMENT,
    "functions.f:0",
    "<|tool_calls_section_begin|>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "```json\n",
    "```",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "call:f",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "s:",
    '"',
    "'",
    "1",
    "-",
    ".5",
    "null",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "f(",
    ")",
    "s=",
    "[TOOL_CALLS]",
    "[ARGS]",
    '{"name": "f", "arguments": {}}',
    '{"name": "f", "parameters": {"s": ',
    "<|python_tag|>",
    "<|channel|>",
    "analysis",
    "commentary",
    " to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<think>",
    "</think>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "\n",
    " ",
    "é\ud800",
    "\\",
]


@pytest.mark.parametrize("name", NAMES)
@given(text=st.lists(st.sampled_from(SHARDS), max_size=24).map("".join), inside=st.booleans(), complete=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_sampled_text_is_parsed(name, text, inside, complete):
    parser = TurnParser(call_format(name), starts_in_thinking=inside)
    parsed = parser.parse(text, complete=complete, tools=TOOLS)
    assert complete or not parsed.calls
    for call in parsed.calls:
        assert isinstance(call, InvalidCall) or call.name
