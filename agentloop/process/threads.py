"""Synchronous functions and methods off the event loop, which all episodes of a worker share."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_THREADS = ThreadPoolExecutor(max_workers=128, thread_name_prefix="agentloop-tool")
"""Threads for tools that wait, started on demand. They are more than asyncio's own, so that the calls of many episodes
do not time out in a queue."""


def threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that runs `function` in a thread; an awaitable that it returns is awaited."""

    @functools.wraps(function)
    async def call(*args: Any, **arguments: Any) -> Any:
        context = contextvars.copy_context()
        run = functools.partial(context.run, function, *args, **arguments)
        result = await asyncio.get_running_loop().run_in_executor(_THREADS, run)
        return await result if inspect.isawaitable(result) else result

    return call


def run_in_threads(cls: type, names: Iterable[str]) -> None:
    """Turn the methods of `cls` that were written without `async` into coroutine functions."""
    for name in names:
        method = getattr(cls, name)
        if inspect.isfunction(method) and not inspect.iscoroutinefunction(method):
            setattr(cls, name, threaded(method))
