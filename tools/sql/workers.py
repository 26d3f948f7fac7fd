"""`WorkerPool`: query workers (`worker.py`), killed if a query exceeds its time."""

from __future__ import annotations

import base64
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentloop.errors import ToolError
from agentloop.process.worker_pool import WorkerDiedError, Workers
from agentloop.tools.sql.results import QueryResult, Value

_GRACE = 0.5
"""Seconds in which the database may stop by itself before its process is killed."""
_SCRIPT = Path(__file__).with_name("worker.py")


class WorkerPool:
    """Runs at most `size` queries at once; others wait. It serves one event loop at a time."""

    def __init__(self, size: int = 4) -> None:
        self._workers = Workers(_SCRIPT, size)

    async def query(self, request: dict[str, Any]) -> QueryResult:
        """Run one request of `worker.py`. Raises `ToolError` if the worker fails, not if the query does."""
        try:
            answer = await self._workers.ask(request, seconds=request["timeout"] + _GRACE)
        except TimeoutError:
            return QueryResult(timed_out=True, seconds=request["timeout"] + _GRACE)
        except WorkerDiedError:
            return QueryResult(error="the query used more memory than it may")
        except ValueError as error:  # a line above the limit, far above any max_bytes
            raise ToolError(f"The answer of the database cannot be read: {error}.") from error
        return _result(answer)

    async def close(self) -> None:
        """Stop the workers."""
        await self._workers.close()


def _result(answer: dict[str, Any]) -> QueryResult:
    rows = [tuple(map(_value, row)) for row in answer.pop("rows", ())]
    return QueryResult(**answer, rows=rows)


def _value(value: Any) -> Value:
    if not isinstance(value, dict):
        return value
    return Decimal(value["decimal"]) if "decimal" in value else base64.b64decode(value["bytes"])
