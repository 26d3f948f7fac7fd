"""Calls as XML-like tags with raw values: Qwen3-Coder, GLM, MiniMax, Seed-OSS, DeepSeek V3.2 and similar models.

    <tool_call>                     <tool_call>NAME                     <minimax:tool_call>
    <function=NAME>                 <arg_key>KEY</arg_key>              <invoke name="NAME">
    <parameter=KEY>                 <arg_value>value</arg_value>        <parameter name="KEY">value</parameter>
    value                           </tool_call>                        </invoke>
    </parameter>                                                        </minimax:tool_call>
    </function>
    </tool_call>

Values are text; the tool's JSON Schema gives their types (`schema_values`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from agentloop.rendering.formats.base import Begun, CallFormat, CallReader, ToolSchemas, end_of_bad
from agentloop.rendering.formats.beginnings import beginning, without_begun
from agentloop.rendering.formats.schema_values import is_text, parameter_schema, typed_value
from agentloop.rendering.formats.strict_json import Malformed, json_of


class _Malformed(Exception):
    """A call cannot be parsed; the message explains the reason to the model."""


@dataclass(frozen=True)
class _Tags:
    """Tags of one family. The regular expressions have groups for the name of the function and for the key."""

    wrapper: str
    wrapper_end: str
    function: str
    function_end: str
    """Empty for formats whose wrapper contains one function without its own tag."""
    parameter: str
    """If it has a group `text`, "true" means that the value is text regardless of the schema, and "false" that the
    value of a parameter without schema is JSON."""
    parameter_end: str
    example: str
    """Example of a well-formed call with one parameter, for feedback to the model."""
    takes_bare: bool = False
    """Whether the wrapper is optional."""
    padded: bool = False
    """Whether a line break after the opening tag and before the closing tag of a value is part of the format."""
    function_re: re.Pattern[str] = field(init=False)
    parameter_re: re.Pattern[str] = field(init=False)
    parameter_end_re: re.Pattern[str] = field(init=False)
    parameter_end_inside_re: re.Pattern[str] = field(init=False)
    """`parameter_end_re` before more of the call, not before the end of the text."""
    function_end_re: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        wrapper, wrapper_end = re.escape(self.wrapper), re.escape(self.wrapper_end)
        function_end, parameter_end = re.escape(self.function_end), re.escape(self.parameter_end)
        more = f"{self.function}|" if self.function_end else ""
        follows = rf"{parameter_end}\s*+(?={self.parameter}|{function_end}\s*+(?:{wrapper_end}|{more}{wrapper}"
        # A closing tag ends a value only if the rest of a call follows, because code may contain the tag.
        patterns = {
            "function_re": rf"\s*{self.function}\s*",
            "parameter_re": self.parameter,
            "parameter_end_re": _unnamed(rf"{follows}|\Z))"),
            "parameter_end_inside_re": _unnamed(rf"{follows}))"),
            "function_end_re": rf"\s*{function_end}\s*",
        }
        for name, pattern in patterns.items():
            object.__setattr__(self, name, re.compile(pattern))

    def read(self, reader: CallReader, start: int) -> int:
        """Read all functions of one wrapper (`CallFormat.read`)."""
        text = reader.text
        wrapped = text.startswith(self.wrapper, start)
        if not wrapped and not self.takes_bare:
            return self._refuse_bare(reader, start)
        position = start + len(self.wrapper) if wrapped else start
        found: list[tuple[str, dict[str, Any]]] = []
        try:
            while (match := self.function_re.match(text, position)) and match["name"].strip():
                position = self._function(text, match.end(), match["name"].strip(), reader.tools, found)
                if not self.function_end:
                    break
            if not found:
                raise _Malformed(f"no function is named after {self.wrapper}")
            rest = text[position : position + len(self.wrapper_end)]
            if rest == self.wrapper_end:
                position += len(self.wrapper_end)
            elif wrapped and rest and not text.startswith(self.wrapper, position):
                raise _Malformed(f"{self.wrapper_end} is missing before {text[position : position + 40]!r}")
        except _Malformed as error:
            end = end_of_bad(text, position, self.wrapper, self.wrapper_end)
            reader.refuse(
                f"This tool call cannot be read: {error}. Write each call as {self.example}.", text[start:end]
            )
            return end
        for name, arguments in found:
            reader.add(name, arguments)
        return position

    def begin(self, reader: CallReader, start: int) -> Begun | None:
        """Read the beginning of the first function of a wrapper (`CallFormat.begin`)."""
        text = reader.text
        wrapped = text.startswith(self.wrapper, start)
        function = self.function_re.match(text, start + len(self.wrapper) if wrapped else start)
        if function is None or not (wrapped or self.takes_bare) or not (name := function["name"].strip()):
            return None
        position = function.end()
        if not self.function_end and position == len(text):
            return None  # the name may go on
        pairs: dict[str, Any] = {}
        while match := self.parameter_re.match(text, position):
            key, kind = match["key"].strip(), match.groupdict().get("text")
            if key in pairs:
                break
            end = self.parameter_end_inside_re.search(text, match.end())
            if end is None:
                if kind != "true" and (kind == "false" or not is_text(name, key, reader.tools)):
                    break
                value = without_begun(text[match.end() :], self.parameter_end)
                return Begun(name, beginning(pairs, key, self._unpadded(value)))
            value = self._unpadded(text[match.end() : end.start()])
            try:
                pairs[key] = self._value(value, name, key, kind, reader.tools)
            except _Malformed:
                break
            position = end.end()
        return Begun(name, beginning(pairs))

    def _unpadded(self, value: str) -> str:
        return value.removeprefix("\n").removesuffix("\n") if self.padded else value

    def _refuse_bare(self, reader: CallReader, start: int) -> int:
        """Reject a function outside the wrapper; return the index after it."""
        text = reader.text
        named = self.function_re.match(text, start)
        assert named is not None
        close = text.find(self.function_end, start)
        end = close + len(self.function_end) if close >= 0 else len(text)
        reader.refuse(
            f"This tool call is not run, because it is not between {self.wrapper} and {self.wrapper_end}. "
            f"Write each call as {self.example}.",
            text[start:end],
            named["name"].strip(),
        )
        return end

    def _function(
        self, text: str, position: int, name: str, tools: ToolSchemas, found: list[tuple[str, dict[str, Any]]]
    ) -> int:
        """Read the parameters of one function; return the index after it."""
        arguments: dict[str, Any] = {}
        while match := self.parameter_re.match(text, position):
            key = match["key"].strip()
            end = self.parameter_end_re.search(text, match.end())
            if end is None:
                closing = f", or the function not by {self.function_end}" if self.function_end else ""
                raise _Malformed(f"parameter {key!r} is not closed by {self.parameter_end}{closing}")
            if key in arguments:
                raise _Malformed(f"parameter {key!r} is given twice")
            value = self._unpadded(text[match.end() : end.start()])
            self._check_swallowed(value, name, key, tools)
            arguments[key] = self._value(value, name, key, match.groupdict().get("text"), tools)
            position = end.end()
        close = self.function_end_re.match(text, position)
        if close is None:
            raise _Malformed(f"function {name!r} is not closed by {self.function_end}: {text[position:][:40]!r}")
        found.append((name, arguments))
        return close.end()

    def _check_swallowed(self, value: str, function: str, key: str, tools: ToolSchemas) -> None:
        """Reject a value that contains another parameter of the tool: its own closing tag is missing."""
        for match in self.parameter_re.finditer(value):
            other = match["key"].strip()
            if other != key and parameter_schema(function, other, tools) is not None:
                raise _Malformed(f"parameter {key!r} is not closed by {self.parameter_end} before parameter {other!r}")

    def _value(self, value: str, function: str, key: str, is_text: str | None, tools: ToolSchemas) -> Any:
        if is_text == "true":
            return value
        if is_text == "false" and parameter_schema(function, key, tools) is None:
            try:
                return json_of(value)
            except Malformed as error:
                raise _Malformed(f'parameter {key!r} has string="false", but is not JSON: {error}') from None
        return typed_value(value, function, key, tools)


def _unnamed(pattern: str) -> str:
    """Return the pattern without group names, so that it can occur several times in one expression."""
    return re.sub(r"\(\?P<\w+>", "(?:", pattern)


def _format(name: str, signs: tuple[str, ...], tags: _Tags, *, thinking: str = "think") -> CallFormat:
    opening = re.escape(tags.wrapper) + (f"|{_unnamed(tags.function)}" if tags.function_end else "")
    return CallFormat(name, signs, opening, tags.read, tags.begin, thinking=(f"<{thinking}>", f"</{thinking}>"))


_NAME = r"[^<>\n]{1,256}"
_QWEN3_CODER = _Tags(
    wrapper="<tool_call>",
    wrapper_end="</tool_call>",
    function=rf"<function=(?P<name>{_NAME})>",
    function_end="</function>",
    parameter=rf"<parameter=(?P<key>{_NAME})>",
    parameter_end="</parameter>",
    example="<tool_call>\n<function=TOOL>\n<parameter=KEY>\nvalue\n</parameter>\n</function>\n</tool_call>",
    takes_bare=True,
    padded=True,
)
QWEN3_CODER = _format("qwen3_coder", ("<function=",), _QWEN3_CODER)
GLM = _format(
    "glm",
    ("<arg_key>", "<arg_value>"),
    _Tags(
        wrapper="<tool_call>",
        wrapper_end="</tool_call>",
        function=r"(?P<name>[^\s<>]{1,256})",
        function_end="",
        parameter=rf"<arg_key>(?P<key>{_NAME})</arg_key>\s*<arg_value>",
        parameter_end="</arg_value>",
        example="<tool_call>TOOL\n<arg_key>KEY</arg_key>\n<arg_value>value</arg_value>\n</tool_call>",
    ),
)
SEED = _format(
    "seed",
    ("<seed:tool_call>", "<function="),
    replace(
        _QWEN3_CODER,
        wrapper="<seed:tool_call>",
        wrapper_end="</seed:tool_call>",
        example="<seed:tool_call>\n<function=TOOL>\n<parameter=KEY>value</parameter>\n</function>\n</seed:tool_call>",
        takes_bare=False,
        padded=False,
    ),
    thinking="seed:think",
)
MINIMAX = _format(
    "minimax",
    ("<minimax:tool_call>", "<invoke name="),
    _Tags(
        wrapper="<minimax:tool_call>",
        wrapper_end="</minimax:tool_call>",
        function=r'<invoke name="(?P<name>[^"<>\n]+)">',
        function_end="</invoke>",
        parameter=r'<parameter name="(?P<key>[^"<>\n]+)">',
        parameter_end="</parameter>",
        example='<minimax:tool_call>\n<invoke name="TOOL">\n<parameter name="KEY">value</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
)
DEEPSEEK_V3_2 = _format(
    "deepseek_v3_2",
    ("｜DSML｜", "function_calls>"),
    _Tags(
        wrapper="<｜DSML｜function_calls>",
        wrapper_end="</｜DSML｜function_calls>",
        function=r'<｜DSML｜invoke name="(?P<name>[^"<>\n]+)">',
        function_end="</｜DSML｜invoke>",
        parameter=r'<｜DSML｜parameter name="(?P<key>[^"<>\n]+)"(?: string="(?P<text>true|false)")?>',
        parameter_end="</｜DSML｜parameter>",
        example='<｜DSML｜function_calls>\n<｜DSML｜invoke name="TOOL">\n'
        '<｜DSML｜parameter name="KEY" string="true">value</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
)
