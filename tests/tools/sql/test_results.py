from agentloop.tools.sql.results import QueryResult, as_text


def test_rows_are_formatted_as_text():
    result = QueryResult(columns=["id", "name"], rows=[(1, "a\nb"), (None, b"xyz"), (2.5, "c"), (3.0, "")])
    assert as_text(result) == "id | name\n1 | a\\nb\nNULL | <3 bytes>\n2.5 | c\n3.0 | \n(4 rows)"


def test_truncation_is_reported():
    many = QueryResult(columns=["n"], rows=[(i,) for i in range(100)], truncated=True)
    text = as_text(many, max_chars=40)
    assert len(text) < 90
    assert text.endswith("of more than 100 rows shown)")
    assert as_text(QueryResult(columns=["x"], rows=[("y" * 500,)]), max_cell_chars=10) == "x\nyyyyyyy...\n(1 row)"


def test_a_row_that_is_cut_says_so():
    text = as_text(QueryResult(columns=["a", "b"], rows=[("x" * 30, 123456), (1, 2)]), max_chars=36)
    note = "(the row above has more than 36 characters and was cut)"
    assert text == f"a | b\n{'x' * 30} | ...\n{note}\n(1 of 2 rows shown)"


def test_a_header_that_is_cut_says_so():
    text = as_text(QueryResult(columns=["a" * 30, "b" * 30], rows=[(1, 2)]), max_chars=36)
    note = "(the names of the 2 columns have more than 36 characters and were cut)"
    assert text == f"{'a' * 30} | ...\n{note}\n1 | 2\n(1 row)"


def test_failures_are_formatted_as_text():
    assert as_text(QueryResult(error="no such column: x")) == "Error: no such column: x"
    assert as_text(QueryResult(timed_out=True, seconds=5.01)) == "The query took too long and was stopped after 5.01 s."
    assert as_text(QueryResult()) == "The query gave no rows."
    assert as_text(QueryResult(columns=["a"], rows=[])) == "a\n(0 rows)"
