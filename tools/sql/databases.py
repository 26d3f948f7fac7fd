"""Read-only databases: SQLite and DuckDB files, and PostgreSQL servers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Literal, Protocol

from agentloop.errors import UserError
from agentloop.tools.sql.results import QueryResult
from agentloop.tools.sql.workers import WorkerPool

_MAX_NAMED = 64
"""Maximum number of databases of tasks that stay open."""


class Database(Protocol):
    """Database that runs read-only queries of many episodes at once."""

    async def start(self) -> None:
        """Check the database. Raises `UserError` if it is not usable."""

    async def query(self, sql: str, *, seconds: float, max_rows: int, max_bytes: int) -> QueryResult:
        """Run one statement for at most `seconds` and return the first `max_rows` rows that fit into `max_bytes`.

        Errors of the query are in the result. Raises `ToolError` if the database itself fails.
        """
        ...

    async def close(self) -> None: ...


class FileDatabase:
    """SQLite or DuckDB file, read in processes that can be killed. The file must not change while it is in use."""

    def __init__(self, path: str | Path, pool: WorkerPool) -> None:
        """Detect the type of the file. Raises `UserError` if it is neither SQLite nor DuckDB."""
        self.path = Path(path)
        self.engine = _engine_of(self.path)
        self._pool = pool

    async def start(self) -> None:
        tables = "sqlite_master" if self.engine == "sqlite" else "duckdb_tables()"
        result = await self.query(f"SELECT count(*) FROM {tables}", seconds=30.0, max_rows=1, max_bytes=1000)
        if not result.ok:
            raise UserError(f"The database {self.path} cannot be read: {result.error or 'no answer in 30 s'}.")

    async def query(self, sql: str, *, seconds: float, max_rows: int, max_bytes: int) -> QueryResult:
        return await self._pool.query(
            {
                "engine": self.engine,
                "path": str(self.path.resolve()),
                "sql": sql,
                "timeout": seconds,
                "max_rows": max_rows,
                "max_bytes": max_bytes,
            }
        )

    async def close(self) -> None:
        """Do nothing: the owner of the shared pool closes it."""


def _engine_of(path: Path) -> Literal["sqlite", "duckdb"]:
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise UserError(f"Cannot read the database {path}: {error.strerror}.") from error
    if head == b"SQLite format 3\0" or not head:  # an empty file is an empty SQLite database
        return "sqlite"
    if head[8:12] == b"DUCK":
        try:
            import duckdb  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"{path} is a DuckDB database, which needs duckdb: `pip install agentloop[sql]`."
            ) from error
        return "duckdb"
    raise UserError(f"{path} is neither a SQLite nor a DuckDB database.")


class Databases:
    """Databases of a tool or a reward: one for all tasks, or those that tasks name, each opened once."""

    def __init__(self, database: str | None, folder: str, workers: int) -> None:
        """Open the one `database` of all tasks, if given. Raises `UserError` if that fails.

        `folder` has the files that tasks name. `workers` is the number of concurrent queries.
        """
        self._folder = folder
        self._workers = workers
        self._pool = WorkerPool(workers)
        self._named: dict[str, Database] = {}
        self.common = self._open(database) if database else None

    def named(self, name: str) -> Database:
        """Return the database that a task names. Raises `UserError` if it cannot be opened."""
        if name not in self._named:
            if len(self._named) == _MAX_NAMED:
                del self._named[next(iter(self._named))]
            self._named[name] = FileDatabase(Path(self._folder) / name, self._pool)
        return self._named[name]

    async def start(self) -> None:
        """Check the one database of all tasks. Raises `UserError` if it is not usable."""
        if self.common is not None:
            await self.common.start()

    async def shutdown(self) -> None:
        if self.common is not None:
            await self.common.close()
        await self._pool.close()

    def _open(self, database: str) -> Database:
        if database.startswith(("postgresql://", "postgres://")):
            return PostgresDatabase(database, connections=self._workers)
        if "://" in database:
            raise UserError(f"Unsupported database {database.partition(':')[0]}://: use a file or postgresql://.")
        return FileDatabase(database, self._pool)


class PostgresDatabase:
    """PostgreSQL database, used with a role that may only read."""

    def __init__(self, dsn: str, *, connections: int = 8) -> None:
        """Prepare `connections` concurrent queries. `dsn` is postgresql://user:password@host/database."""
        try:
            import psycopg
        except ImportError as error:
            raise UserError("A PostgreSQL database needs psycopg: `pip install agentloop[sql]`.") from error
        self._psycopg = psycopg
        self._dsn = dsn
        self._size = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(connections)
        self._idle: list[Any] = []

    async def start(self) -> None:
        """Check the connection. Raises `UserError` too if the role may do more than read."""
        try:
            connection = await self._connect()
        except self._psycopg.Error as error:
            raise UserError(
                f"Cannot connect to PostgreSQL: {_first_line(error)}. Check the option database."
            ) from error
        try:
            row = await (await connection.execute(_RIGHTS)).fetchone()
        finally:
            await connection.close()
        if row is not None and any(row[1:]):
            raise UserError(
                f"The PostgreSQL role {row[0]!r} may do more than read. Create a role for the queries of models: "
                "CREATE ROLE reader LOGIN PASSWORD '...'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader."
            )

    async def query(self, sql: str, *, seconds: float, max_rows: int, max_bytes: int) -> QueryResult:
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._idle, self._room = asyncio.get_running_loop(), [], asyncio.Semaphore(self._size)
        if "\0" in sql:
            return QueryResult(error="the query contains a NUL character")
        async with self._room:
            started = time.monotonic()
            connection = None
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
                result = await self._read(connection, sql, seconds, max_rows, max_bytes)
            except self._psycopg.errors.QueryCanceled:
                result = QueryResult(timed_out=True, seconds=time.monotonic() - started)
            except self._psycopg.Error as error:
                result = QueryResult(error=_first_line(error), seconds=time.monotonic() - started)
            except BaseException:
                if connection is not None:
                    await connection.close()
                raise
            if connection is not None and not connection.closed:
                self._idle.append(connection)
            return result

    async def _read(self, connection: Any, sql: str, seconds: float, max_rows: int, max_bytes: int) -> QueryResult:
        started = time.monotonic()
        # Roll back the transaction of each query, so that its settings end with it.
        async with connection.transaction(force_rollback=True):
            await connection.execute(f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}")
            cursor = connection.cursor()
            rows: list[Any] = []
            room, truncated = max_bytes, False
            # Streaming uses the extended protocol, which refuses a second statement after a semicolon.
            async for row in cursor.stream(sql):
                room -= sum(len(value) if isinstance(value, str | bytes) else 16 for value in row)
                if len(rows) == max_rows or room < 0:
                    truncated = True
                    break
                rows.append(tuple(map(_plain, row)))
            columns = [column.name for column in cursor.description or ()]
        return QueryResult(columns=columns, rows=rows, truncated=truncated, seconds=time.monotonic() - started)

    async def _connect(self) -> Any:
        options = (
            "-c default_transaction_read_only=on -c lock_timeout=1000 -c idle_in_transaction_session_timeout=60000"
        )
        return await self._psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, options=options, connect_timeout=10
        )

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            for connection in idle:
                await connection.close()


_RIGHTS = """
SELECT current_user, rolsuper, rolcreaterole, rolcreatedb, rolreplication,
       pg_has_role('pg_read_server_files', 'member'), pg_has_role('pg_write_server_files', 'member'),
       pg_has_role('pg_execute_server_program', 'member'), pg_has_role('pg_signal_backend', 'member'),
       EXISTS (SELECT 1 FROM information_schema.role_table_grants
               WHERE privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
                 AND table_schema NOT IN ('pg_catalog', 'information_schema'))
FROM pg_roles WHERE rolname = current_user
"""


def _plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    return value if value is None or isinstance(value, bool | int | float | str | bytes) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
