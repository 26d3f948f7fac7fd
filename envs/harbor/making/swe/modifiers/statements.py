"""Modifiers of statements: conditions, branches, loops, and statements that are missing or in another order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

from agentloop.envs.harbor.making.swe.modifiers.source import Edit, Source

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Delete)
"""Statements whose order does not affect the names that others see."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def invert_condition(source: Source) -> Iterator[Edit]:
    """Invert the condition of an `if`, of an `if` in an expression, or of one in a comprehension."""
    for node in source.nodes:
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        for test in tests:
            start, stop = source.span(test)
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                yield Edit(start, stop, source.text(test).removeprefix(b"not").lstrip())
            elif isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                yield Edit(start, stop, b"not " + source.text(test))
            else:
                yield Edit(start, stop, b"not (" + source.text(test) + b")")


def remove_conditional(source: Source) -> Iterator[Edit]:
    """Remove an `if` that has no other branch."""
    return _removed(source, lambda each: isinstance(each, ast.If) and not each.orelse)


def remove_loop(source: Source) -> Iterator[Edit]:
    """Remove a loop."""
    return _removed(source, lambda each: isinstance(each, ast.For | ast.While | ast.AsyncFor))


def remove_assignment(source: Source) -> Iterator[Edit]:
    """Remove an assignment inside a function."""
    inside = {id(each) for node in source.nodes if isinstance(node, _FUNCTIONS) for each in ast.walk(node)}
    return _removed(source, lambda each: id(each) in inside and isinstance(each, ast.Assign | ast.AugAssign))


def remove_call(source: Source) -> Iterator[Edit]:
    """Remove a call whose result is not used."""
    return _removed(source, lambda each: isinstance(each, ast.Expr) and isinstance(each.value, ast.Call | ast.Await))


def _removed(source: Source, is_wanted: Callable[[ast.stmt], bool]) -> Iterator[Edit]:
    """Yield the edits that remove a statement with its lines; the only one of a block becomes `pass`."""
    for block in source.blocks():
        for statement in block:
            if not source.has(statement) or not is_wanted(statement):
                continue
            start, stop = source.span(statement)
            if len(block) == 1 and source.data[start : start + 4] != b"elif":
                yield Edit(start, stop, b"pass")
            elif (lines := source.whole_lines(statement)) is not None:
                yield Edit(*lines, b"")


def swap_branches(source: Source) -> Iterator[Edit]:
    """Swap what an `if` and its `else` do."""
    for node in source.nodes:
        if isinstance(node, ast.IfExp):
            body, other = node.body, node.orelse
            new = source.text(other) + source.data[source.span(body)[1] : source.span(other)[0]] + source.text(body)
            yield Edit(source.span(body)[0], source.span(other)[1], new)
        elif isinstance(node, ast.If) and node.orelse:
            first, last = source.span(node.body[0])[0], source.span(node.body[-1])[1]
            second, end = source.span(node.orelse[0])[0], source.span(node.orelse[-1])[1]
            if source.data[second : second + 4] != b"elif":
                new = source.data[second:end] + source.data[last:second] + source.data[first:last]
                yield Edit(first, end, new)


def change_return(source: Source) -> Iterator[Edit]:
    """Return None instead of a value."""
    for node in source.nodes:
        if isinstance(node, ast.Return) and node.value is not None:
            yield Edit(*source.span(node.value), b"None")


def change_jump(source: Source) -> Iterator[Edit]:
    """Replace `break` with `continue`, or `continue` with `break`."""
    for node in source.nodes:
        if isinstance(node, ast.Break | ast.Continue):
            yield Edit(*source.span(node), b"continue" if isinstance(node, ast.Break) else b"break")


def swap_statements(source: Source) -> Iterator[Edit]:
    """Swap two statements that follow each other on lines of their own."""
    for block in source.blocks():
        for one, other in itertools.pairwise(block):
            if not isinstance(one, _SIMPLE) or not isinstance(other, _SIMPLE) or _is_docstring(one):
                continue
            if source.whole_lines(one) is None or source.whole_lines(other) is None:
                continue
            start, stop = source.span(one)
            begin, end = source.span(other)
            yield Edit(start, end, source.data[begin:end] + source.data[stop:begin] + source.data[start:stop])


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
