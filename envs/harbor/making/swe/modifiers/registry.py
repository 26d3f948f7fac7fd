"""`MODIFIERS`: kinds of changes by name. Each lists all edits of its kind that a file allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentloop.envs.harbor.making.swe.modifiers import definitions, expressions, statements
from agentloop.envs.harbor.making.swe.modifiers.source import Edit, Source

Modifier = Callable[[Source], Iterator[Edit]]
"""Yields edits in the order of the file. `Source.changed` says whether one leaves valid Python."""

MODIFIERS: dict[str, Modifier] = {
    "change_comparison": expressions.change_comparison,
    "reverse_comparison": expressions.reverse_comparison,
    "change_operator": expressions.change_operator,
    "change_and_or": expressions.change_and_or,
    "swap_operands": expressions.swap_operands,
    "swap_arguments": expressions.swap_arguments,
    "change_number": expressions.change_number,
    "change_truth": expressions.change_truth,
    "remove_sign": expressions.remove_sign,
    "use_other_parameter": expressions.use_other_parameter,
    "invert_condition": statements.invert_condition,
    "remove_conditional": statements.remove_conditional,
    "swap_branches": statements.swap_branches,
    "remove_loop": statements.remove_loop,
    "remove_assignment": statements.remove_assignment,
    "remove_call": statements.remove_call,
    "change_return": statements.change_return,
    "change_jump": statements.change_jump,
    "swap_statements": statements.swap_statements,
    "change_default": definitions.change_default,
    "remove_base": definitions.remove_base,
    "remove_decorator": definitions.remove_decorator,
}
