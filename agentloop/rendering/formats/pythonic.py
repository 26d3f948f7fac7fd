"""Calls written as Python: `<|tool_call_start|>[NAME(key="value"), ...]<|tool_call_end|>`, of Liquid's LFM2."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentloop.rendering.formats.base import CallFormat, CallReader
from agentloop.rendering.formats.strict_json import Malformed, json_of

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_HOW = f'Write calls as {OPEN}[TOOL(key="value")]{CLOSE}, with literals as values.'
STRING = r"'(?:\\.|[^'\\])*+(?:'|\Z)|\"(?:\\.|[^\"\\])*+(?:\"|\Z)"
"""Pattern of a Python string, closed or not."""
_TOKENS = re.compile(f"{STRING}|{re.escape(CLOSE)}", re.DOTALL)
"""Python strings, closed or not, and the closing tag outside them."""
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _read(reader: CallReader, start: int) -> int:
    text, begin = reader.text, start + len(OPEN)
    close = text.find(CLOSE, begin)
    first = close if close >= 0 else len(text)
    unquoted = next((token.start() for token in _TOKENS.finditer(text, begin) if token[0] == CLOSE), first)
    refused: Malformed | None = None
    for close in dict.fromkeys((first, unquoted)):
        try:
            calls = _calls(text[begin:close].strip())
        except Malformed as error:
            refused = refused or error
            continue
        for name, arguments in calls:
            reader.add(name, arguments)
        return min(close + len(CLOSE), len(text))
    end = min(first + len(CLOSE), len(text))
    reader.refuse(f"This tool call cannot be read: {refused}. {_HOW}", text[start:end])
    return end


def _calls(code: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"it is not valid Python ({type(error).__name__}: {error})") from None
    items = tree.elts if isinstance(tree, ast.List) else [tree]
    if not items:
        raise Malformed("its list has no calls")
    return [_call(item) for item in items]


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed(f"{_short(node)} is not a call with named arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg in arguments:
            raise Malformed(f"argument {keyword.arg!r} is given twice")
        arguments[str(keyword.arg)] = value_of(keyword.value)
    return _source(node.func), arguments


def value_of(node: ast.expr) -> Any:
    """Return the JSON value of a Python literal; JSON words are allowed, because templates write objects as JSON."""

    class Words(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.Constant(_JSON_WORDS[name.id]) if name.id in _JSON_WORDS else name

        def visit_Dict(self, node: ast.Dict) -> ast.AST:
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            if len(set(keys)) < len(keys):
                raise Malformed("a key of an object is given twice")
            return self.generic_visit(node)

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
        raise Malformed("it is nested too deeply") from None


LFM2 = CallFormat("lfm2", (OPEN,), re.escape(OPEN), _read)
