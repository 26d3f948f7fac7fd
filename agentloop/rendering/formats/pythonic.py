"""Calls written as Python: `<|tool_call_start|>[NAME(key="value"), ...]<|tool_call_end|>`, of Liquid's LFM2."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentloop.rendering.formats.base import CallFormat, CallReader
from agentloop.rendering.formats.json_calls import Malformed, json_of

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_HOW = f'Write calls as {_OPEN}[TOOL(key="value")]{_CLOSE}, with literals as values.'
_TOKENS = re.compile(rf"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|{re.escape(_CLOSE)}", re.DOTALL)
"""Python strings, and the closing tag outside them."""
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _read(reader: CallReader, start: int) -> int:
    text, begin = reader.text, start + len(_OPEN)
    close = text.find(_CLOSE, begin)
    first = close if close >= 0 else len(text)
    unquoted = next((token.start() for token in _TOKENS.finditer(text, begin) if token[0] == _CLOSE), first)
    refused: Malformed | None = None
    for close in dict.fromkeys((first, unquoted)):
        try:
            calls = _calls(text[begin:close].strip())
        except Malformed as error:
            refused = refused or error
            continue
        for name, arguments in calls:
            reader.add(name, arguments)
        return min(close + len(_CLOSE), len(text))
    end = min(first + len(_CLOSE), len(text))
    reader.refuse(f"This tool call cannot be read: {refused}. {_HOW}", text[start:end])
    return end


def _calls(code: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"it is not valid Python ({type(error).__name__}: {error})") from None
    items = tree.elts if isinstance(tree, ast.List) else [tree]
    if not items:
        raise Malformed("its list holds no call")
    return [_call(item) for item in items]


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed(f"{_short(node)} is not a call with named arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg in arguments:
            raise Malformed(f"argument {keyword.arg!r} is given twice")
        arguments[str(keyword.arg)] = _value(keyword.value)
    return _source(node.func), arguments


def _value(node: ast.expr) -> Any:
    """Return the JSON value of a Python literal; JSON words are allowed, because templates write objects as JSON."""

    class Words(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.Constant(_JSON_WORDS[name.id]) if name.id in _JSON_WORDS else name

    try:
        return json_of(json.dumps(ast.literal_eval(Words().visit(node))))
    except (ValueError, TypeError, RecursionError) as error:
        raise Malformed(f"{_short(node)} is not a value ({error})") from None


def _short(node: ast.expr) -> str:
    return repr(_source(node)[:40])


def _source(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:
        raise Malformed("it is nested too deep") from None


LFM2 = CallFormat("lfm2", (_OPEN,), re.escape(_OPEN), _read)
