"""Limit the time of user code, even of code that ignores its cancellation, and keep it from ending the run."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

from agentloop.errors import described

R = TypeVar("R")

SHUTDOWN_SECONDS = 60.0
"""Seconds that a tool or a reward has to release what it holds at the end of a run."""
_CLEANUP_SECONDS = 30.0
"""Seconds that a cancelled call has to release what it holds."""


class OutOfTimeError(TimeoutError):
    """A call was cancelled at its time limit, in contrast to a `TimeoutError` of its own."""


async def within(seconds: float, call: Awaitable[R]) -> R:
    """Await `call`, and cancel it after `seconds`. Raises `OutOfTimeError`.

    A cancelled call may clean up. If it has not ended `_CLEANUP_SECONDS` later, it is closed at the point where it
    waits: a loop that catches every exception would otherwise never end. An error that would end more than the call
    becomes a `RuntimeError`: `SystemExit`, a panic of a library in Rust, or a `CancelledError` that nobody requested.
    """
    coroutine = call if asyncio.iscoroutine(call) else _coroutine(call)
    timeout = asyncio.timeout(seconds)
    try:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as done:  # most calls of environments: without a wait they need no timer
            result: R = done.value
            return result
        async with timeout:
            return await _until(timeout.expired, coroutine, waits_for)
    except TimeoutError as error:
        if timeout.expired():
            raise OutOfTimeError(f"it took longer than {max(seconds, 0.0):.3g} s") from error
        raise
    except SystemExit as error:  # it would end the event loop
        raise _contained(error, f"it called sys.exit({error.code!r})") from None
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _contained(error, "something that it waited for was cancelled") from None
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise _contained(error, described(error)) from None


def _contained(error: BaseException, text: str) -> RuntimeError:
    return RuntimeError(text).with_traceback(error.__traceback__)


async def _coroutine(call: Awaitable[R]) -> R:
    return await call


@types.coroutine
def _until(is_over: Callable[[], bool], coroutine: Coroutine[Any, Any, R], waits_for: Any) -> Generator[Any, Any, R]:
    """Continue a coroutine in the current task. If it still waits when the time is over, only let it clean up."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # a cancellation, which belongs to the coroutine
                waits_for = coroutine.throw(error)
                if is_over():
                    break
            else:
                waits_for = coroutine.send(value)
    except StopIteration as done:
        result: R = done.value
        return result
    return (yield from _clean_up(coroutine, waits_for).__await__())


async def _clean_up(coroutine: Coroutine[Any, Any, R], waits_for: Any) -> R:
    """Continue a cancelled coroutine for a limited time, and then close it. Raises `CancelledError` if it was closed.

    This waits beside the coroutine instead of in it, because it may wait for a task that ignores cancellation.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _CLEANUP_SECONDS
    try:
        while (left := end - loop.time()) > 0:
            if waits_for is None:  # as in sleep(0)
                await asyncio.sleep(0)
            elif not (await asyncio.wait({waits_for}, timeout=left))[0]:
                break
            try:
                waits_for = coroutine.send(None)
            except StopIteration as done:
                result: R = done.value
                return result
    finally:
        with suppress(Exception):  # user code may raise at its end, or refuse to end
            coroutine.close()
    raise asyncio.CancelledError
