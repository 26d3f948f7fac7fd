"""Answer a request at its deadline, even if its work is still running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")

_ending: set[asyncio.Task[Any]] = set()
"""Cancelled work that has not ended yet."""


class OverdueError(Exception):
    """The client will soon stop waiting for an answer."""


def seconds_since(request: Request) -> float:
    """Return the seconds since the headers of a request arrived."""
    arrived: float = request.scope["state"]["arrived"]
    return asyncio.get_running_loop().time() - arrived


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. After `seconds`, cancel it and raise `OverdueError` without waiting for its end.

    If this call is cancelled itself, it waits for the cancelled work.
    """
    if seconds <= 0:
        work.close()
        raise OverdueError
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    if task.done():
        return task.result()
    task.cancel()
    _ending.add(task)
    task.add_done_callback(_forget)
    raise OverdueError


def _forget(task: asyncio.Task[Any]) -> None:
    _ending.discard(task)
    if not task.cancelled():
        task.exception()  # nobody waits for it
