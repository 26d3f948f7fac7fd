"""`run_blocking`: call a coroutine function from synchronous code, also in notebooks, which run an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")


def run_blocking(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    """Return `await function(*args)`, run in a new thread if this thread already runs an event loop.

    Ctrl-C, the interrupt of a notebook's kernel and SIGTERM cancel the call, so that it can clean up. Then
    `KeyboardInterrupt` is raised, or `asyncio.CancelledError` after SIGTERM.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_until_terminated(function, *args))
    return _in_a_thread(function, *args)


async def _until_terminated(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await function(*args)


def _in_a_thread(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    cancels: Future[Callable[[], object]] = Future()

    async def cancellable() -> R:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await function(*args)

    # The kernel of a notebook uses the context to find the cell that the output belongs to.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="agentloop") as thread:
        call = thread.submit(lambda: context.run(asyncio.run, cancellable()))
        try:
            return call.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # its loop is closed: the call has just ended
                cancels.result()()
            wait([call])
            raise
