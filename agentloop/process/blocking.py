"""`run_blocking`: wait for a coroutine function in synchronous code, also in a notebook, whose event loop runs."""

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
    """Return `await function(*args)`, in a thread of its own if this thread runs an event loop.

    Ctrl-C, the interrupt of a notebook's kernel and SIGTERM cancel the call, so that it closes what it opened. Then
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
    if threading.current_thread() is threading.main_thread():  # others cannot handle signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await function(*args)


def _in_a_thread(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    cancels: Future[Callable[[], object]] = Future()

    async def cancellable() -> R:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await function(*args)

    # The context tells the kernel of a notebook to which cell the output belongs.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="agentloop") as thread:
        call = thread.submit(lambda: context.run(asyncio.run, cancellable()))
        try:
            return call.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # its loop is closed: it just ended
                cancels.result()()
            wait([call])
            raise
