"""Read-only databases: one for all tasks, or SQLite and DuckDB files that tasks name."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
from pathlib import Path
from typing import Literal, Protocol

from agentloop.errors import UserError
from agentloop.tools.sql.postgres import PostgresDatabase
from agentloop.tools.sql.results import QueryResult
from agentloop.tools.sql.workers import WorkerPool

_MAX_NAMED = 64
"""Maximum number of open databases that tasks name."""


class Database(Protocol):
    """Database that runs read-only queries of many episodes concurrently."""

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
        """Detect the type of the file.

        Raises `UserError` if it is not a regular file of SQLite or DuckDB, or lacks the newest changes.
        """
        self.path = Path(path)
        self.engine = _engine_of(self.path)
        if self.engine == "sqlite":
            _check_wal(self.path)
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
    head = _head_of(path)
    if head == b"SQLite format 3\0" or not head:  # an empty file is an empty SQLite database
        return "sqlite"
    if head[8:12] == b"DUCK":
        try:
            import duckdb  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"{path} is a DuckDB database, which needs duckdb: `pip install 'agentloop[sql]'`."
            ) from error
        return "duckdb"
    raise UserError(f"{path} is neither a SQLite nor a DuckDB database.")


def _head_of(path: Path) -> bytes:
    """Return the first bytes of a regular file. Refuse others: opening a pipe or a device could block or act."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UserError(f"Cannot read the database {path}: {error.strerror}.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"The database {path} is not a regular file: name a SQLite or DuckDB file.")
        return os.read(descriptor, 16)
    finally:
        os.close(descriptor)


def _check_wal(path: Path) -> None:
    """Raise `UserError` if changes of a SQLite file are in the log beside it, which workers do not read."""
    wal = Path(f"{path.resolve()}-wal")
    try:
        size = wal.stat().st_size
    except FileNotFoundError:
        return
    if size:
        raise UserError(
            f"The newest changes of the database {path} may be only in {wal}, which is not read. Close the programs "
            f'that write to it, and run: sqlite3 {shlex.quote(str(path))} "PRAGMA wal_checkpoint(TRUNCATE)"'
        )


class Databases:
    """Databases of a tool or a reward: one for all tasks, or those that tasks name, each opened once."""

    def __init__(self, database: str | None, folder: str, workers: int) -> None:
        """Open the one `database` of all tasks, if given. Raises `UserError` if that fails.

        `folder` has the files that tasks name. `workers` is the number of concurrent queries.
        """
        self._folder = Path(folder)
        self._workers = workers
        self._pool = WorkerPool(workers)
        self._named: dict[str, Database] = {}
        self.common = self._open(database) if database else None

    async def named(self, name: str) -> Database:
        """Return the database that a task names, a file below the folder.

        Raises `UserError` if the file is elsewhere, even if only through a link, or cannot be opened.
        """
        if (known := self._named.get(name)) is not None:
            return known
        database = await asyncio.to_thread(self._file_below, name)
        if len(self._named) >= _MAX_NAMED:
            del self._named[next(iter(self._named))]
        return self._named.setdefault(name, database)

    def _file_below(self, name: str) -> FileDatabase:
        try:
            folder = self._folder.resolve()
            path = (folder / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links
            raise UserError(f"The database {name!r} of a task is not a path: {error}.") from error
        if not path.is_relative_to(folder):
            raise UserError(f"The database {name!r} of a task is not below {folder}: set the option folder.")
        return FileDatabase(path, self._pool)

    async def start(self) -> None:
        """Check the one database of all tasks, or the folder of theirs. Raises `UserError` if it is not usable."""
        if self.common is not None:
            await self.common.start()
        elif not self._folder.is_dir():
            raise UserError(
                f"The option folder is {str(self._folder)!r}, which is not a folder: name that of the databases."
            )

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
