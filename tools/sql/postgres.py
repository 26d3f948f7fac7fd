"""`PostgresDatabase`: queries with a role that may only read, in sessions that are reset after each query."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import Any

from agentloop.errors import UserError
from agentloop.tools.sql.results import QueryResult


class PostgresDatabase:
    """PostgreSQL database, used with a role that may only read. No query sees the session state of another one."""

    def __init__(self, dsn: str, *, connections: int = 8) -> None:
        """Prepare `connections` concurrent queries. `dsn` is postgresql://user:password@host/database."""
        try:
            import psycopg
        except ImportError as error:
            raise UserError("A PostgreSQL database needs psycopg: `pip install 'agentloop[sql]'`.") from error
        self._psycopg = psycopg
        self._dsn = dsn
        self._size = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(connections)
        self._idle: list[Any] = []
        self.role = ""
        """Name of the role, after `start`."""

    async def start(self) -> None:
        """Check the connection. Raises `UserError` if it fails, or if the role may do more than read its tables."""
        try:
            connection = await self._connect()
        except self._psycopg.Error as error:
            raise UserError(
                f"Cannot connect to PostgreSQL: {_first_line(error)}. Check the option database."
            ) from error
        try:
            row = await (await connection.execute(_RIGHTS)).fetchone()
            functions = await (await connection.execute(_EXECUTABLE)).fetchall()
        finally:
            await connection.close()
        assert row is not None
        self.role = row[0]
        if any(row[1:]):
            raise UserError(
                f"The PostgreSQL role {row[0]!r} may do more than read. Create a role for the queries of models: "
                "CREATE ROLE reader LOGIN PASSWORD '...'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader."
            )
        if functions:
            raise UserError(
                f"The PostgreSQL role {row[0]!r} may call {len(functions)} functions that reach files, other servers "
                f"or other sessions, such as {functions[0][0]}. Run this in the database as a superuser: {REVOKE}"
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
            if connection is not None and await self._cleaned(connection):
                self._idle.append(connection)
            return result

    async def _cleaned(self, connection: Any) -> bool:
        """Discard the session state (prepared statements, locks, settings). Return whether that worked."""
        if connection.closed:
            return False
        try:
            await connection.execute("DISCARD ALL")
        except self._psycopg.Error:
            await connection.close()
            return False
        except BaseException:
            await connection.close()
            raise
        return True

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
        connection = await self._psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, options=options, connect_timeout=10, prepare_threshold=None
        )
        self._load_as_text(connection)
        return connection

    def _load_as_text(self, connection: Any) -> None:
        """Load all but numbers and bytes as the text of PostgreSQL: Python has no month, no infinite or early date."""
        from psycopg.types.string import TextLoader

        for kind in self._psycopg.adapters.types:
            for oid in (kind.array_oid, *([] if kind.name in _LOADED else [kind.oid])):
                if oid:
                    connection.adapters.register_loader(oid, TextLoader)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        if self._loop is asyncio.get_running_loop():
            for connection in idle:
                await connection.close()


_LOADED = ("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "bytea")
"""Types whose values are values of Python."""
_FUNCTIONS = (
    "^(dblink|lo_|loread|lowrite|pg_advisory_|pg_cancel_backend|pg_file_|pg_logical_|pg_ls_|pg_notify|pg_read_"
    "|pg_stat_file|pg_stat_get_activity|pg_stat_statements|pg_terminate_backend|pg_try_advisory_|set_config)"
)
"""Pattern of names of functions that reach files or other servers, or that see, disturb or signal other sessions."""
_EXECUTABLE = f"""
SELECT oid::regprocedure::text FROM pg_proc
WHERE proname ~ '{_FUNCTIONS}' AND has_function_privilege(oid, 'EXECUTE') ORDER BY 1
"""
REVOKE = (
    "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE prokind = 'f' AND proname ~ "
    f"'{_FUNCTIONS}' LOOP EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); END LOOP; END $$"
)
"""Statement that revokes the functions from all roles except superusers, in one database."""
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
    return value if value is None or isinstance(value, bool | int | float | Decimal | str | bytes) else str(value)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
