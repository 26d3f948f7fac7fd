"""Modifiers of functions and classes: defaults, bases and decorators."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from agentloop.envs.harbor.making.swe.modifiers.source import Edit, Source


def change_default(source: Source) -> Iterator[Edit]:
    """Change the default of a parameter: a boolean, a number, a string or None."""
    for node in source.nodes:
        if isinstance(node, ast.arguments):
            for default in (*node.defaults, *node.kw_defaults):
                if isinstance(default, ast.Constant) and (other := _other(default.value)) is not None:
                    yield Edit(*source.span(default), other)


def _other(value: object) -> bytes | None:
    if value is None:
        return b"False"
    if isinstance(value, bool):
        return str(not value).encode()
    if isinstance(value, int):
        return str(value + 1).encode()
    if isinstance(value, str):
        return b'""' if value else b'" "'
    return None


def remove_base(source: Source) -> Iterator[Edit]:
    """Remove a base of a class, with a comma beside it."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            for number, base in enumerate(node.bases):
                start, stop = source.span(base)
                if number:
                    start = source.span(node.bases[number - 1])[1]
                elif len(node.bases) > 1:
                    stop = source.span(node.bases[1])[0]
                yield Edit(start, stop, b"")


def remove_decorator(source: Source) -> Iterator[Edit]:
    """Remove a decorator with its line."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if (lines := source.whole_lines(decorator, after=b"@")) is not None:
                    yield Edit(*lines, b"")
