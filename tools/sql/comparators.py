"""Compare two query results by the rules of the benchmarks, for rewards.

Every comparator takes (predicted, gold). A failed gold query is never a match: it raises `GoldQueryError`, which the
caller counts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from agentloop.errors import AgentLoopError, UserError, nearest
from agentloop.tools.sql.results import QueryResult, Row

Comparator = Callable[[QueryResult, QueryResult], bool]

_DIGITS = 9
"""Significant digits of floats that are compared, because a sum depends on the order of its rows."""
_PIECE = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?(?:\*/|\Z)|[()]|[^()'\"/-]+|[/-]", re.DOTALL)
"""A string, a comment, a parenthesis, or other text of SQL."""


class GoldQueryError(AgentLoopError):
    """The gold query failed, so the task cannot be judged."""


def bird_set(predicted: QueryResult, gold: QueryResult) -> bool:
    """Return whether the sets of rows are equal: BIRD's execution accuracy (arXiv 2305.03111)."""
    return _both_ok(predicted, gold) and set(map(_plain, predicted.rows)) == set(map(_plain, gold.rows))


def multiset(predicted: QueryResult, gold: QueryResult) -> bool:
    """Return whether both have the same rows, each as often, in any order."""
    return _both_ok(predicted, gold) and Counter(map(_plain, predicted.rows)) == Counter(map(_plain, gold.rows))


def ordered(predicted: QueryResult, gold: QueryResult) -> bool:
    """Return whether both have the same rows in the same order."""
    return _both_ok(predicted, gold) and list(map(_plain, predicted.rows)) == list(map(_plain, gold.rows))


def test_suite(predicted: QueryResult, gold: QueryResult, *, order_matters: bool = False) -> bool:  # noqa: PT028
    """Return whether a permutation of the columns makes the multisets of rows equal.

    This is Spider's test-suite accuracy on one database (arXiv 2010.02840). With `order_matters`, for a gold query
    that `sorts`, the order of the rows must be equal too.
    """
    if not _both_ok(predicted, gold):
        return False
    ours, theirs = [list(map(_plain, result.rows)) for result in (predicted, gold)]
    if len(ours) != len(theirs):
        return False
    if not ours:
        return True
    width = len(theirs[0])
    if len(ours[0]) != width:
        return False
    same: Callable[[Any, Any], bool] = (
        (lambda a, b: a == b) if order_matters else (lambda a, b: Counter(a) == Counter(b))
    )
    # A predicted column can match a gold column only if both have the same values.
    candidates = [
        [i for i in range(width) if same([row[i] for row in ours], [row[j] for row in theirs])] for j in range(width)
    ]
    return _match_columns(ours, theirs, candidates, same)


test_suite.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def sorts(sql: str) -> bool:
    """Return whether a query orders its rows: it has ORDER BY outside parentheses and strings."""
    depth, outside = 0, []
    for piece in _PIECE.findall(sql):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth == 0 and piece not in ("(", ")") and piece[:1] not in "'\"":
            outside.append(" " if piece[:2] in ("--", "/*") else piece)
    return re.search(r"\border\s+by\b", "".join(outside), re.IGNORECASE) is not None


def comparator(name: str) -> Comparator:
    """Return a comparator by name: bird_set, multiset, ordered or test_suite. Raises `UserError`."""
    known: dict[str, Comparator] = {
        "bird_set": bird_set,
        "multiset": multiset,
        "ordered": ordered,
        "test_suite": test_suite,
    }
    if name not in known:
        raise UserError(f"There is no comparator {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return known[name]


def _match_columns(
    ours: Sequence[Row], theirs: Sequence[Row], candidates: Sequence[Sequence[int]], same: Callable[[Any, Any], bool]
) -> bool:
    """Return whether a permutation of the predicted columns gives the gold rows.

    The search is depth first, starts with the columns that have the fewest candidates, and stops a branch as soon as
    the chosen columns differ.
    """
    order = sorted(range(len(candidates)), key=lambda j: len(candidates[j]))

    def search(chosen: list[int]) -> bool:
        done = len(chosen)
        left = [tuple(row[i] for i in chosen) for row in ours]
        right = [tuple(row[j] for j in order[:done]) for row in theirs]
        if not same(left, right):
            return False
        if done == len(order):
            return True
        return any(search([*chosen, i]) for i in candidates[order[done]] if i not in chosen)

    return search([])


def _both_ok(predicted: QueryResult, gold: QueryResult) -> bool:
    if not gold.ok or gold.truncated:
        reason = "it timed out" if gold.timed_out else gold.error or "it returns more rows than the limit"
        raise GoldQueryError(f"the gold query is not usable: {reason}")
    return predicted.ok and not predicted.truncated


def _plain(row: Row) -> Row:
    return tuple(_number(value) if isinstance(value, float | Decimal) else value for value in row)


def _number(value: float | Decimal) -> float:
    """Return a value that is equal for equal numbers: databases give sums and averages different types."""
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return _rounded(float(value))


def _rounded(value: float) -> float:
    if not math.isfinite(value) or value == 0:
        return value
    return float(f"{value:.{_DIGITS - 1}e}")
