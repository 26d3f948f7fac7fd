"""Modifiers of expressions: operators, operands, constants and names."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from agentloop.envs.harbor.making.swe.modifiers.source import Edit, Source

_NEAR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_NEAR |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_REVERSED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARISON = re.compile(rb"<=|>=|==|!=|<|>|\bis\s+not\b|\bis\b|\bnot\s+in\b|\bin\b")
_OTHER = {"+": "-", "-": "+", "*": "//", "/": "*", "//": "%", "%": "//", "**": "*", "<<": ">>", ">>": "<<"}
_OTHER |= {"&": "|", "|": "&", "^": "|"}
_OPERATOR = re.compile(rb"\*\*|//|<<|>>|[-+*/%&|^]")
_AND_OR = re.compile(rb"\b(and|or)\b")
_ONE_ORDER = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
"""Operators for which swapping the operands changes the result."""
_DECIMAL = re.compile(rb"[0-9]+")


def change_comparison(source: Source) -> Iterator[Edit]:
    """Use the most similar other comparison: `<` becomes `<=`, `in` becomes `not in`."""
    return _comparisons(source, _NEAR)


def reverse_comparison(source: Source) -> Iterator[Edit]:
    """Compare the other way round: `<` becomes `>`."""
    return _comparisons(source, _REVERSED)


def _comparisons(source: Source, others: dict[str, str]) -> Iterator[Edit]:
    for node in source.nodes:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, right in itertools.pairwise(operands):
                yield from _replaced(source, left, right, _COMPARISON, others)


def change_operator(source: Source) -> Iterator[Edit]:
    """Use another operator: `+` becomes `-`, `//=` becomes `%=`."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and not _formats_text(node):
            yield from _replaced(source, node.left, node.right, _OPERATOR, _OTHER)
        elif isinstance(node, ast.AugAssign):
            yield from _replaced(source, node.target, node.value, _OPERATOR, _OTHER)


def change_and_or(source: Source) -> Iterator[Edit]:
    """Replace `and` with `or`, or `or` with `and`."""
    for node in source.nodes:
        if isinstance(node, ast.BoolOp):
            yield from _replaced(source, node.values[0], node.values[1], _AND_OR, {"and": "or", "or": "and"})


def _replaced(
    source: Source, left: ast.expr, right: ast.expr, operator: re.Pattern[bytes], others: dict[str, str]
) -> Iterator[Edit]:
    """Yield the edit of the operator between two operands."""
    start, text = source.between(left, right)
    if (found := operator.search(text)) is None:
        return
    other = others.get(b" ".join(found[0].split()).decode())
    if other is not None:
        yield Edit(start + found.start(), start + found.end(), other.encode())


def _formats_text(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)


def swap_operands(source: Source) -> Iterator[Edit]:
    """Swap the operands of an operator whose order counts: `a - b` becomes `b - a`."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ONE_ORDER) and not _formats_text(node):
            yield from _swapped(source, node.left, node.right)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _swapped(source, node.left, node.comparators[0])


def swap_arguments(source: Source) -> Iterator[Edit]:
    """Swap the first two arguments of a call."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and len(node.args) > 1:
            first, second = node.args[:2]
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield from _swapped(source, first, second)


def _swapped(source: Source, left: ast.expr, right: ast.expr) -> Iterator[Edit]:
    start, between = source.between(left, right)
    if b"(" in between or b")" in between:  # they may belong to either operand
        return
    stop = start + len(between)
    new = source.text(right) + source.data[start:stop] + source.text(left)
    yield Edit(source.span(left)[0], source.span(right)[1], new)


def change_number(source: Source) -> Iterator[Edit]:
    """Increase or decrease an integer by one."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int and _DECIMAL.fullmatch(source.text(node)):
            for other in (node.value + 1, node.value - 1):
                if other >= 0:
                    yield Edit(*source.span(node), str(other).encode())


def change_truth(source: Source) -> Iterator[Edit]:
    """Replace True with False, or False with True."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield Edit(*source.span(node), str(not node.value).encode())


def remove_sign(source: Source) -> Iterator[Edit]:
    """Remove a minus or a `not`."""
    for node in source.nodes:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            sign = b"-" if isinstance(node.op, ast.USub) else b"not"
            start = source.span(node)[0]
            stop = start + len(sign)
            while source.data[stop : stop + 1] == b" ":
                stop += 1
            yield Edit(start, stop, b"")


def use_other_parameter(source: Source) -> Iterator[Edit]:
    """Replace a parameter with another one of the function."""
    for function in source.nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        names = [name for name in names if name not in ("self", "cls")]
        if len(names) < 2:
            continue
        others = dict(zip(names, [*names[1:], names[0]], strict=True))
        own = [each for statement in function.body for each in ast.walk(statement)]
        inside = set(map(id, own))
        for node in source.nodes:
            if (
                id(node) in inside
                and isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Load)
                and node.id in others
            ):
                yield Edit(*source.span(node), others[node.id].encode())
