"""Cancel work when the client that waits for it disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from agentloop.tools.serving.http.bodies import ClientGoneError

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects or this call is cancelled.

    The call waits for the cancelled work, so that its resources are free again. If the client has disconnected, it then
    raises `ClientGoneError`. The body of the request must have been read.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    gone = asyncio.ensure_future(_until_gone(request))
    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() == 0:
            raise ClientGoneError from None
        raise
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
