"""Calls of each format with arguments, and parts of turns, for tests of streams."""

import json

from hypothesis import strategies as st

from agentloop.rendering.formats import call_format

PROPERTIES = {"text": {"type": "string"}, "number": {"type": "number"}, "list": {"type": "array"}}
TOOLS = ({"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": PROPERTIES}}},)
EAGER = frozenset({"run"})
AT_THE_END = frozenset({"lfm2", "lfm2_5", "llama3"})
"""Formats that send a call when it has ended."""


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def raw(value):
    return value if isinstance(value, str) else dumps(value)


def named(name, arguments):
    return dumps({"name": name, "arguments": arguments})


def tagged(wrapper, function, parameter):
    """Return a writer of calls as tags; `parameter` gets a key, a value and whether it is text."""

    def write(name, arguments):
        inside = "".join(parameter(key, raw(value), isinstance(value, str)) for key, value in arguments.items())
        return wrapper.format(function.format(name, inside))

    return write


def gemma_value(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(item)}" for key, item in value.items()) + "}"
    return "[" + ",".join(map(gemma_value, value)) + "]" if isinstance(value, list) else dumps(value)


def kimi(name, arguments):
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


def deepseek(inside):
    def write(name, arguments):
        call = inside.replace("NAME", name).replace("JSON", dumps(arguments))
        return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"

    return write


def pythonic(write_text):
    def write(name, arguments):
        items = (f"{key}={write_text(v) if isinstance(v, str) else repr(v)}" for key, v in arguments.items())
        return f"<|tool_call_start|>[{name}({', '.join(items)})]<|tool_call_end|>"

    return write


def coder(wrapper, break_="\n"):
    return tagged(
        wrapper,
        "<function={}>\n{}</function>",
        lambda key, value, _: f"<parameter={key}>{break_}{value}{break_}</parameter>\n",
    )


CALLS = {
    "hermes": lambda *call: f"<tool_call>\n{named(*call)}\n</tool_call>",
    "nemotron": lambda *call: f"<TOOLCALL>[{named(*call)}]</TOOLCALL>",
    "phi": lambda *call: f"<|tool_call|>[{named(*call)}]<|/tool_call|>",
    "mistral": lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}",
    "kimi": kimi,
    "deepseek_r1": deepseek("function<｜tool▁sep｜>NAME\n```json\nJSON\n```"),
    "deepseek_v3_1": deepseek("NAME<｜tool▁sep｜>JSON"),
    "gemma4": lambda name, arguments: f"<|tool_call>call:{name}{gemma_value(arguments)}<tool_call|>",
    "lfm2": pythonic(repr),
    "lfm2_5": pythonic(lambda text: f"'{text}'"),
    "qwen3_coder": coder("<tool_call>\n{}\n</tool_call>"),
    "seed": coder("<seed:tool_call>\n{}\n</seed:tool_call>", ""),
    "glm": tagged(
        "<tool_call>{}</tool_call>",
        "{}\n{}",
        lambda key, value, _: f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    ),
    "minimax": tagged(
        "<minimax:tool_call>\n{}\n</minimax:tool_call>",
        '<invoke name="{}">\n{}</invoke>',
        lambda key, value, _: f'<parameter name="{key}">{value}</parameter>\n',
    ),
    "deepseek_v3_2": tagged(
        "<｜DSML｜function_calls>\n{}\n</｜DSML｜function_calls>",
        '<｜DSML｜invoke name="{}">\n{}</｜DSML｜invoke>',
        lambda key, value, is_text: (
            f'<｜DSML｜parameter name="{key}" string="{"true" if is_text else "false"}">{value}</｜DSML｜parameter>\n'
        ),
    ),
    "harmony": lambda name, arguments: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}<|call|>"
    ),
    "llama3": lambda name, arguments: dumps({"name": name, "parameters": arguments}),
}
"""Write a call of a function, given its name and its arguments, in each format."""

_VALUES = st.one_of(
    st.sampled_from(['é "', "a\nb", "</parameter>", "\\n 😀", ""]), st.integers(-9, 99), st.just([1, "x"]), st.just(2.5)
)
_ARGUMENTS = st.dictionaries(st.sampled_from(["text", "number", "list"]), _VALUES, max_size=3)


def parts_of(name):
    """Texts, think tags, calls and broken calls of a format."""
    opening, closing = call_format(name).thinking
    write = CALLS[name]
    call = st.builds(lambda tool, given: write(tool, given), st.sampled_from(["run", "other"]), _ARGUMENTS)
    broken = st.builds(lambda text, end: text[: end % (len(text) + 1)], call, st.integers(0, 400))
    text = st.sampled_from(["so ", "\n", "a < b", "{", "[1]", "`x` ", '"'])
    return st.one_of(call, call, broken, text, st.sampled_from([opening, closing]))
