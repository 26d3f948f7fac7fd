import asyncio
import math
import os
import shutil
import sqlite3

import pytest

from agentloop.envs.rewards.sql_execution import SqlExecution
from agentloop.errors import FailureKind, UserError
from agentloop.tools.sql.tool import SqlQuery
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    for name in ("a", "b"):
        with sqlite3.connect(tmp_path / f"{name}.sqlite") as connection:
            connection.execute("CREATE TABLE t (x TEXT)")
            connection.execute("INSERT INTO t VALUES (?)", (f"row of {name}",))
        connection.close()
    return tmp_path


def ask(tool: SqlQuery, *queries: tuple[dict, str]) -> list:
    async def run():
        toolset = Toolset([tool])
        await toolset.start()
        results = []
        for task, sql in queries:
            sessions = toolset.sessions("t", task=task, seed=0)
            results.append(await sessions.call(ToolCall("sql_query", {"sql": sql}, "call_0"), math.inf))
            await sessions.close()
        await toolset.shutdown()
        return results

    return asyncio.run(run())


def test_each_task_uses_its_database(folder):
    tool = SqlQuery(folder=str(folder))
    first, second = ask(
        tool, ({"database": "a.sqlite"}, "SELECT x FROM t"), ({"database": "b.sqlite"}, "SELECT x FROM t")
    )
    assert first.content == "x\nrow of a\n(1 row)"
    assert second.content == "x\nrow of b\n(1 row)"
    assert first.metrics["ok"] == 1.0


def test_one_database_can_serve_all_tasks(folder):
    (result,) = ask(SqlQuery(str(folder / "a.sqlite")), ({}, "SELECT x FROM nowhere"))
    assert result.is_error
    assert result.failure is None
    assert result.content == "Error: no such table: nowhere"


@pytest.mark.parametrize(
    "name", ["../outside.sqlite", "{outside}", "link.sqlite", "b/../../outside.sqlite", "pipe", ".", "loop", "a\0b"]
)
def test_task_reaches_only_regular_files_below_the_folder(name, folder):
    inside = folder / "inside"
    inside.mkdir()
    outside = (folder / "a.sqlite").rename(folder / "outside.sqlite")
    (inside / "link.sqlite").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    os.mkfifo(inside / "pipe")
    tool = SqlQuery(folder=str(inside))
    (result,) = ask(tool, ({"database": name.format(outside=outside)}, "SELECT x FROM t"))
    assert result.failure is FailureKind.TOOL
    assert "row of" not in result.content


def add_row_to_the_wal(path) -> None:
    """Add a row that is only in the file -wal, as after a program that was killed."""
    live = path.with_name("live.sqlite")
    shutil.copy(path, live)
    connection = sqlite3.connect(live, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("INSERT INTO t VALUES ('new')")
    for suffix in ("", "-wal"):
        shutil.copy(f"{live}{suffix}", f"{path}{suffix}")
    connection.close()


def test_database_with_changes_in_a_wal_is_refused_until_they_are_moved(folder, caplog):
    add_row_to_the_wal(folder / "a.sqlite")
    with pytest.raises(UserError, match=r"a.sqlite-wal, which is not read.*PRAGMA wal_checkpoint\(TRUNCATE\)"):
        SqlQuery(str(folder / "a.sqlite"))
    (refused,) = ask(SqlQuery(folder=str(folder)), ({"database": "a.sqlite"}, "SELECT x FROM t"))
    assert refused.failure is FailureKind.TOOL
    assert "a.sqlite-wal, which is not read" in caplog.text
    with pytest.raises(UserError, match="which is not read"):
        SqlExecution(str(folder / "a.sqlite"))

    connection = sqlite3.connect(folder / "a.sqlite")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (result,) = ask(SqlQuery(str(folder / "a.sqlite")), ({}, "SELECT x FROM t"))
    connection.close()
    assert result.content == "x\nrow of a\nnew\n(2 rows)"


def test_task_may_name_a_link_that_stays_below_the_folder(folder):
    (folder / "link.sqlite").symlink_to("a.sqlite")
    absolute = {"database": str(folder / "b.sqlite")}
    results = ask(
        SqlQuery(folder=str(folder)), ({"database": "link.sqlite"}, "SELECT x FROM t"), (absolute, "SELECT 1")
    )
    assert [result.is_error for result in results] == [False, False]


@pytest.mark.parametrize("task", [{}, {"database": 7}, {"database": "missing.sqlite"}])
def test_task_without_database_is_a_tool_failure(task, folder):
    (result,) = ask(SqlQuery(folder=str(folder)), (task, "SELECT 1"))
    assert result.failure is FailureKind.TOOL
    assert str(folder) not in result.content


def test_invalid_options_raise_user_error(tmp_path):
    with pytest.raises(UserError, match="is not a regular file: name a SQLite or DuckDB file"):
        SqlQuery(str(tmp_path))
    with pytest.raises(UserError, match=r"option folder is .*, which is not a folder"):
        ask(SqlQuery(folder=str(tmp_path / "missing")))
    with pytest.raises(UserError, match="Cannot read the database"):
        SqlQuery(str(tmp_path / "missing.sqlite"))
    with pytest.raises(UserError, match="Unsupported database mysql://"):
        SqlQuery("mysql://host/db")
    with pytest.raises(UserError, match="above 0"):
        SqlQuery(timeout=0)


def test_limits_are_enforced(folder):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    (result,) = ask(SqlQuery(str(folder / "a.sqlite"), max_rows=3), ({}, endless))
    assert result.content == "x\n1\n2\n3\n(3 of more than 3 rows shown)"
