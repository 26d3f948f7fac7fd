import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.tools.sql.comparators import (
    GoldQueryError,
    bird_set,
    comparator,
    multiset,
    ordered,
    sorts,
    test_suite,
)
from agentloop.tools.sql.results import QueryResult

A, B = (1, "a"), (2, "b")


def rows(*values) -> QueryResult:
    return QueryResult(columns=["x", "y"], rows=list(values))


@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [
        # (bird_set, multiset, ordered, test_suite)
        (rows(A, B), rows(A, B), (True, True, True, True)),
        (rows(B, A), rows(A, B), (True, True, False, True)),
        (rows(A, B, B), rows(A, B), (True, False, False, False)),
        (rows(("a", 1), ("b", 2)), rows(A, B), (False, False, False, True)),
        (rows(("a", 2), ("b", 1)), rows(A, B), (False, False, False, False)),
        (rows(A), rows(A, B), (False, False, False, False)),
        (rows(), rows(), (True, True, True, True)),
        (rows((1, None)), rows((1, "")), (False, False, False, False)),
        (rows((0.1 + 0.2, b"x")), rows((0.3, b"x")), (True, True, True, True)),
        (rows((1.0, "a")), rows((1, "a")), (True, True, True, True)),
        (rows((1, "a", 3)), rows((1, "a")), (False, False, False, False)),
    ],
)
def test_equivalent_results_match(predicted, gold, expected):
    assert tuple(same(predicted, gold) for same in (bird_set, multiset, ordered, test_suite)) == expected


@pytest.mark.parametrize("name", ["bird_set", "multiset", "ordered", "test_suite"])
def test_failed_queries_never_match(name):
    same = comparator(name)
    failed, slow, cut = QueryResult(error="no such table"), QueryResult(timed_out=True), QueryResult(truncated=True)
    for bad in (failed, slow, cut):
        assert not same(bad, rows(A))
        with pytest.raises(GoldQueryError):
            same(bad, bad)
        with pytest.raises(GoldQueryError):
            same(rows(A), bad)


def test_order_matters_if_the_gold_query_sorts():
    assert not test_suite(rows(B, A), rows(A, B), order_matters=True)
    assert test_suite(rows(("a", 1), ("b", 2)), rows(A, B), order_matters=True)


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=6), st.permutations(range(4)), st.randoms())
def test_permuted_columns_and_rows_match(table, columns, random):
    shuffled = [tuple(row[i] for i in columns) for row in table]
    random.shuffle(shuffled)
    assert test_suite(rows(*shuffled), rows(*table))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT x FROM t ORDER BY x", True),
        ("select x from t order\n by x limit 3", True),
        ("SELECT x FROM (SELECT x FROM t ORDER BY x)", False),
        ("SELECT ' order by ' FROM t", False),
        ("SELECT x FROM t -- order by x", False),
        ("SELECT x /* order by x */ FROM t", False),
        ('SELECT "order by" FROM t', False),
        ("SELECT rank() OVER (ORDER BY x) FROM t", False),
        ("SELECT 'it''s' FROM t ORDER BY 1", True),
    ],
)
def test_sorting_queries_are_detected(sql, expected):
    assert sorts(sql) is expected


def test_unknown_comparator_is_named():
    with pytest.raises(UserError, match="Did you mean 'multiset'"):
        comparator("multi_set")
