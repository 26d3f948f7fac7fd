"""`run_blocking`: call a coroutine function from synchronous code, also in notebooks, which run an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

from agentloop.errors import UserError

R = TypeVar("R")

_log = logging.getLogger(__name__)
_CLEANUP_SECONDS = 30.0
"""Seconds that tasks which a call leaves behind have to end."""


def run_blocking(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    """Return `await function(*args)`, run in a new thread if this thread already runs an event loop.

    Ctrl-C, the interrupt of a notebook's kernel and SIGTERM cancel the call, so that it can clean up. Then
    `KeyboardInterrupt` is raised, or `asyncio.CancelledError` after SIGTERM. Raises `UserError` if user code exits in a
    task of its own, which ends the event loop.
    """
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(_until_terminated(function, *args))
        return _in_a_thread(function, *args)
    except SystemExit as error:
        raise UserError(
            f"Code of a tool, an environment, a reward or an agent called sys.exit({error.code!r}) in a task that it "
            "had started, which ended the program. Raise an exception there instead."
        ) from error


async def _until_terminated(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await _without_tasks_left(function(*args))


async def _without_tasks_left(call: Coroutine[Any, Any, R]) -> R:
    """Return the result of a call, and cancel the tasks that it leaves behind.

    Abandon those that ignore their cancellation, as only user code does: `asyncio.run` would wait for them forever.
    """
    try:
        return await call
    finally:
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            _, stuck = await asyncio.wait(left, timeout=_CLEANUP_SECONDS)
            for task in stuck:
                _log.warning("%s was abandoned: it has ignored its cancellation for %g s.", task, _CLEANUP_SECONDS)
                asyncio.tasks._unregister_task(task)


def _in_a_thread(function: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> R:
    cancels: Future[Callable[[], object]] = Future()

    async def cancellable() -> R:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await _without_tasks_left(function(*args))

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
