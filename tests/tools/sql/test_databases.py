"""The same questions to three databases, and what must not be possible in each."""

import asyncio
import hashlib
import os
import sqlite3
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentloop.envs.rewards.sql_execution import SqlExecution
from agentloop.errors import UserError
from agentloop.tools.sql.comparators import bird_set
from agentloop.tools.sql.databases import FileDatabase
from agentloop.tools.sql.postgres import PostgresDatabase
from agentloop.tools.sql.results import QueryResult, as_text
from agentloop.tools.sql.workers import WorkerPool

pytestmark = [pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"), pytest.mark.slow]
ENGINES = ["sqlite", "duckdb", "postgres"]
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT 1 - x FROM n) SELECT count(*) FROM n"


@asynccontextmanager
async def opened(engine: str, request):
    pool = WorkerPool(2)
    if engine == "postgres":
        database = PostgresDatabase(
            f"postgresql://reader@{request.getfixturevalue('postgres')}/postgres", connections=2
        )
    else:
        database = FileDatabase(request.getfixturevalue(f"{engine}_file"), pool)
    try:
        await database.start()
        yield database
    finally:
        await database.close()
        await pool.close()


def peak_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def worker_pids() -> list[int]:
    """Return the query workers of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if "sql/worker.py" in Path(f"/proc/{pid}/cmdline").read_text()]


async def ask(database, sql: str, **options) -> QueryResult:
    return await database.query(sql, **{"seconds": 5.0, "max_rows": 100, "max_bytes": 1 << 20, **options})


@pytest.mark.parametrize("engine", ENGINES)
async def test_rows_keep_their_types(engine, request):
    async with opened(engine, request) as database:
        result = await ask(database, "SELECT id, name, score, photo FROM people ORDER BY id")
    assert list(result.columns) == ["id", "name", "score", "photo"]
    assert result.rows == [(1, "ada", 36.5, None), (2, "bob", 40.0, b"\x00\xff"), (3, "cleo", None, b"")]
    assert not result.truncated


@pytest.mark.parametrize("engine", ["duckdb", "postgres"])
@pytest.mark.parametrize("same", ["round(avg(id), 1)", "2", "sum(id)::decimal(9, 3) / 3", "sum(id) / 3"])
async def test_equal_numbers_of_different_types_are_equal(engine, same, request):
    async with opened(engine, request) as database:
        gold = await ask(database, "SELECT CAST(avg(id) AS decimal(9, 4)) FROM people")
        predicted = await ask(database, f"SELECT {same} FROM people")
        other = await ask(database, "SELECT CAST(2.5 AS decimal(9, 4))")
        digits = [await ask(database, f"SELECT CAST(12345678901 AS {kind})") for kind in ("decimal(20, 2)", "bigint")]
    assert bird_set(predicted, gold)
    assert bird_set(*digits)
    assert not bird_set(other, gold)
    assert as_text(gold) == f"{gold.columns[0]}\n2.0000\n(1 row)"


async def test_values_that_python_lacks_are_the_text_of_postgres(request):
    async with opened("postgres", request) as database:
        result = await ask(
            database,
            """SELECT 'infinity'::timestamp, '0044-03-15 BC'::date, '24:00'::time, interval '1 mon',
               '{"a": [null, true]}'::jsonb, '{1,null}'::int[], '[1,2)'::int4range""",
        )
    assert result.rows == [
        ("infinity", "0044-03-15 BC", "24:00:00", "1 mon", '{"a": [null, true]}', "{1,NULL}", "[1,2)")
    ]


@pytest.mark.parametrize("engine", ENGINES)
async def test_invalid_query_reports_an_error_and_the_next_works(engine, request):
    async with opened(engine, request) as database:
        result = await ask(database, "SELECT nme FROM people")
        assert not result.ok
        assert "nme" in result.error
        for bad in ("", ";", "SELEC 1", "SELECT 1; SELECT 2", "SELECT 1 \0"):
            assert not (await ask(database, bad)).rows
        assert (await ask(database, "SELECT count(*) FROM people")).rows == [(3,)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO people VALUES (4, 'dan', 1, NULL)",
        "UPDATE people SET name = 'x'",
        "DELETE FROM people",
        "DROP TABLE people",
        "CREATE TABLE other (x INT)",
        "CREATE TEMP TABLE other (x INT)",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE people ADD COLUMN x INT",
        "VACUUM",
        "BEGIN; DELETE FROM people; COMMIT",
        "SELECT 1; DROP TABLE people",
        "INSERT INTO people SELECT * FROM people RETURNING id",
        "WITH gone AS (DELETE FROM people RETURNING id) SELECT * FROM gone",
        "COMMIT; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    ],
)
async def test_writes_are_rejected(engine, request, sql):
    async with opened(engine, request) as database:
        result = await ask(database, sql)
        assert not result.rows
        assert not result.ok or not result.columns
        assert (await ask(database, "SELECT count(*), min(name) FROM people")).rows == [(3, "ada")]
        assert not (await ask(database, "SELECT * FROM other")).ok


@pytest.mark.parametrize("engine", ENGINES)
async def test_long_results_are_truncated_cheaply(engine, request):
    endless = {
        "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n",
        "duckdb": "SELECT * FROM range(100000000000)",
        "postgres": "SELECT generate_series(1, 100000000000)",
    }[engine]
    async with opened(engine, request) as database:
        started = time.monotonic()
        result = await ask(database, endless, max_rows=7, seconds=30.0)
        assert time.monotonic() - started < 15
        assert (len(result.rows), result.truncated) == (7, True)
        wide = await ask(database, "SELECT repeat('x', 1000) FROM people" if engine != "sqlite" else
                         "SELECT printf('%1000s', 'x') FROM people", max_bytes=2500)  # fmt: skip
        assert (len(wide.rows), wide.truncated) == (2, True)
        assert (await ask(database, "SELECT 1")).rows == [(1,)]


@pytest.mark.parametrize("engine", ENGINES)
async def test_slow_query_times_out(engine, request):
    async with opened(engine, request) as database:
        started = time.monotonic()
        result = await ask(database, ENDLESS, seconds=0.5)
        assert result.timed_out
        assert not result.ok
        assert time.monotonic() - started < 8
        assert (await ask(database, "SELECT 1")).rows == [(1,)]


@pytest.mark.parametrize("engine", ENGINES)
async def test_cancelled_query_frees_its_worker(engine, request):
    async with opened(engine, request) as database:
        for _ in range(3):  # more than there are places
            task = asyncio.create_task(ask(database, ENDLESS, seconds=60.0))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await ask(database, "SELECT 1")).rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'new.sqlite' AS other",
        "ATTACH ':memory:' AS other",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "SELECT file FROM pragma_database_list()",
        "SELECT load_extension('x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('x', 'y')",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT randomblob(900000000)",
        "SELECT zeroblob(900000000)",
        "SELECT hex(zeroblob(400000000))",
        "SELECT fts3_tokenizer('simple')",
        "/* comment */ PRAGMA query_only = 0 -- more",
        "CREATE VIRTUAL TABLE t USING fts5(x)",
        "SELECT " + "(" * 2000 + "1" + ")" * 2000,
        " UNION ALL ".join(["SELECT 1"] * 100_000),
    ],
)
async def test_sqlite_rejects_dangerous_statements(sql, sqlite_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = hashlib.sha256(sqlite_file.read_bytes()).hexdigest()
    pool = WorkerPool(1)
    database = FileDatabase(sqlite_file, pool)
    result = await ask(database, sql)
    await pool.close()
    assert not result.ok
    assert not result.rows
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(sqlite_file.parent) == ["people.sqlite"]
    assert hashlib.sha256(sqlite_file.read_bytes()).hexdigest() == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(printf('%.*c', 900000000, 'x'))",
        "SELECT length(replace(printf('%.*c', 4000000, 'x'), 'x', 'xxxxxxxxxx'))",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 9000000) SELECT group_concat(x) FROM n",
        "SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' LIKE '%a%a%a%a%a%a%a%a%a%a%a%a%a%b' FROM people",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n ORDER BY -x",
    ],
)
async def test_sqlite_bombs_stay_within_time_and_memory(sql, sqlite_file):
    pool = WorkerPool(1)
    database = FileDatabase(sqlite_file, pool)
    started = time.monotonic()
    await ask(database, sql, seconds=1.0)
    assert time.monotonic() - started < 8
    assert all(peak_kib(pid) < 600_000 for pid in worker_pids())
    assert (await ask(database, "SELECT 1")).rows == [(1,)]
    await pool.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY people TO 'out.csv'",
        "ATTACH 'new.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA memory_limit='20GB'",
        "EXPORT DATABASE 'x'",
        "SELECT * FROM glob('/etc/*')",
    ],
)
async def test_duckdb_rejects_dangerous_statements(sql, duckdb_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = WorkerPool(1)
    result = await ask(FileDatabase(duckdb_file, pool), sql)
    await pool.close()
    assert not result.ok
    assert not result.rows
    assert os.listdir(tmp_path) == ["people.duckdb"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')",
        "COPY people TO '/tmp/x'",
        "COPY people TO PROGRAM 'id'",
        "SET SESSION AUTHORIZATION owner",
        "SET ROLE owner",
        "DO $$ BEGIN PERFORM 1; END $$; SELECT 1",
        "SELECT set_config('transaction_read_only', 'off', false); DELETE FROM people",
        "SELECT set_config('search_path', 'x', false)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_terminate_backend(1)",
        "SELECT pg_notify('a', 'b')",
        "SELECT lo_creat(-1)",
        "SELECT query FROM pg_stat_activity",
    ],
)
async def test_postgres_rejects_dangerous_statements(sql, postgres):
    database = PostgresDatabase(f"postgresql://reader@{postgres}/postgres")
    result = await ask(database, sql)
    assert not result.ok
    assert not result.rows
    assert (await ask(database, "SELECT current_user, count(*) FROM people")).rows == [("reader", 3)]
    await database.close()


@pytest.mark.parametrize(
    ("leave", "look"),
    [
        ("PREPARE left_behind AS SELECT 7", "SELECT count(*)::int FROM pg_prepared_statements"),
        ("LISTEN left_behind", "SELECT count(*)::int FROM pg_listening_channels()"),
    ],
)
async def test_postgres_query_leaves_nothing_in_its_session(leave, look, postgres):
    database = PostgresDatabase(f"postgresql://reader@{postgres}/postgres", connections=1)
    await ask(database, leave)
    assert (await ask(database, look)).rows == [(0,)]
    await database.close()


async def test_role_that_reaches_other_sessions_is_rejected_at_start(postgres):
    with pytest.raises(UserError, match=r"may call .* as a superuser: DO"):
        await PostgresDatabase(f"postgresql://reader@{postgres}/template1").start()


async def test_writable_role_is_rejected_at_start(postgres):
    for role in ("owner", "writer"):
        with pytest.raises(UserError, match=f"{role}.*may do more than read.*GRANT SELECT"):
            await PostgresDatabase(f"postgresql://{role}@{postgres}/postgres").start()


async def test_unreachable_server_is_named():
    with pytest.raises(UserError, match="Cannot connect to PostgreSQL"):
        await PostgresDatabase("postgresql://reader@127.0.0.1:1/postgres").start()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "Cannot read the database"), (b"not a database at all", "neither a SQLite")]
)
def test_invalid_paths_are_rejected(content, message, tmp_path):
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        FileDatabase(path, WorkerPool())


async def test_broken_file_is_rejected_at_start(tmp_path):
    path = tmp_path / "x.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(4000))
    pool = WorkerPool(1)
    with pytest.raises(UserError, match="cannot be read"):
        await FileDatabase(path, pool).start()
    await pool.close()


async def test_excess_queries_wait_for_a_worker(sqlite_file):
    pool = WorkerPool(2)
    database = FileDatabase(sqlite_file, pool)
    results = await asyncio.gather(*(ask(database, f"SELECT {i}") for i in range(50)))
    assert [result.rows for result in results] == [[(i,)] for i in range(50)]
    assert len(worker_pids()) == 2
    await pool.close()


def test_pool_serves_successive_event_loops(sqlite_file):
    pool = WorkerPool(1)
    database = FileDatabase(sqlite_file, pool)

    async def once():
        try:
            return (await ask(database, "SELECT 1")).rows
        finally:
            await pool.close()

    assert [asyncio.run(once()) for _ in range(2)] == [[(1,)]] * 2


async def test_invalid_bytes_in_text_are_replaced(tmp_path):
    path = tmp_path / "odd.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x TEXT)")
        connection.execute("INSERT INTO t VALUES (CAST(x'61ff62' AS TEXT))")
    connection.close()
    pool = WorkerPool(1)
    assert (await ask(FileDatabase(path, pool), "SELECT x FROM t")).rows == [("a\ufffdb",)]
    await pool.close()


async def test_gold_queries_need_a_role_of_their_own(postgres):
    reader, judge = [f"postgresql://{role}@{postgres}/postgres" for role in ("reader", "judge")]
    with pytest.raises(UserError, match="needs gold_database"):
        SqlExecution(reader)
    shared, own = SqlExecution(reader, gold_database=reader), SqlExecution(reader, gold_database=judge)
    with pytest.raises(UserError, match="has the same role 'reader' as database"):
        await shared.start()
    await own.start()
    for reward in (shared, own):
        await reward.shutdown()
