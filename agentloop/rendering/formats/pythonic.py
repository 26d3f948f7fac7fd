"""Calls written as Python: `<|tool_call_start|>[NAME(key="value"), ...]<|tool_call_end|>`, of Liquid's LFM2."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from agentloop.rendering.formats.json_calls import Malformed
from agentloop.rendering.parsing import CallFormat, CallReader

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_HOW = f'Write calls as {_OPEN}[TOOL(key="value")]{_CLOSE}, with literals as values.'
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _read(reader: CallReader, start: int) -> int:
    text = reader.text
    close = text.find(_CLOSE, start)
    end = close + len(_CLOSE) if close >= 0 else len(text)
    try:
        calls = _calls(text[start + len(_OPEN) : close if close >= 0 else len(text)].strip())
    except Malformed as error:
        reader.refuse(f"This tool call cannot be read: {error}. {_HOW}", text[start:end])
        return end
    for name, arguments in calls:
        reader.add(name, arguments)
    return end


def _calls(code: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"it is no Python ({type(error).__name__}: {error})") from None
    items = tree.elts if isinstance(tree, ast.List) else [tree]
    if not items:
        raise Malformed("its list holds no call")
    return [_call(item) for item in items]


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed(f"{_short(node)} is no call with named arguments")
    return ast.unparse(node.func), {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}


def _value(node: ast.expr) -> Any:
    """A literal of Python; templates write objects as JSON, whose words are names to Python."""

    class Words(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return ast.Constant(_JSON_WORDS[name.id]) if name.id in _JSON_WORDS else name

    try:
        value = ast.literal_eval(Words().visit(node))
        json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise Malformed(f"{_short(node)} is no value ({error})") from None
    return value


def _short(node: ast.expr) -> str:
    return repr(ast.unparse(node)[:40])


LFM2 = CallFormat("lfm2", (_OPEN,), re.escape(_OPEN), _read)
