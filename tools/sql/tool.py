"""`SqlQuery`: lets the model query a database."""

from __future__ import annotations

import logging
from typing import Annotated

from agentloop.errors import ToolError, UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.sql.databases import Database, Databases
from agentloop.tools.sql.results import as_text

_logger = logging.getLogger(__name__)


class SqlQuery(Tool):
    """Run one SQL query on the task's database and read the rows. Nothing can be changed."""

    by_name_only = True

    def __init__(
        self,
        database: str | None = None,
        *,
        database_field: str = "database",
        folder: str = ".",
        timeout: float = 5.0,
        max_rows: int = 50,
        max_chars: int = 4000,
        max_bytes: int = 1 << 20,
        workers: int = 4,
    ) -> None:
        """Open `database`: a SQLite or DuckDB file, or postgresql://... By default each task names its own.

        A task names a file below `folder` in its field `database_field`. `timeout` is the maximum seconds of a query.
        `max_rows` and `max_bytes` limit the part of a result that is read, `max_chars` the part that the model sees.
        `workers` is the number of concurrent queries. Raises `UserError` for invalid limits.
        """
        if not (timeout > 0 and max_rows > 0 and max_chars > 0 and max_bytes > 0 and workers > 0):
            raise UserError("timeout, max_rows, max_chars, max_bytes and workers of sql_query must be above 0.")
        self.seconds = timeout
        self.timeout = timeout + 600.0  # includes the wait for a worker; the worker limits the query
        self._field = database_field
        self._max_rows, self._max_chars, self._max_bytes = max_rows, max_chars, max_bytes
        self._databases = Databases(database, folder, workers)

    async def start(self) -> None:
        await self._databases.start()

    async def shutdown(self) -> None:
        await self._databases.shutdown()

    async def call(self, ctx: ToolContext, sql: Annotated[str, "One SQL statement that reads"]) -> ToolResult:
        seconds = max(min(self.seconds, ctx.seconds_left), 0.001)
        database = await self._database_of(ctx)
        result = await database.query(sql, seconds=seconds, max_rows=self._max_rows, max_bytes=self._max_bytes)
        return ToolResult(
            as_text(result, max_chars=self._max_chars),
            is_error=not result.ok,
            metrics={"seconds": result.seconds, "timed_out": float(result.timed_out), "ok": float(result.ok)},
        )

    async def _database_of(self, ctx: ToolContext) -> Database:
        if self._databases.common is not None:
            return self._databases.common
        name = ctx.task.get(self._field)
        if not isinstance(name, str):
            raise ToolError(f"This task names no database in its field {self._field!r}.")
        try:
            return await self._databases.named(name)
        except UserError as error:
            _logger.warning("%s", error)  # for people: the model learns no paths of this machine
            raise ToolError("The database of this task cannot be read.") from error
