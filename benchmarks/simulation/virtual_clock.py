"""Asyncio event loop with a virtual clock, which jumps to the next timer instead of waiting.

Only time is simulated. Tasks, timeouts, semaphores and queues are asyncio's own, so code runs unchanged. An hour of
sleeping tools takes only the time of the code around them. Runs are repeatable, because nothing depends on the
machine's speed.

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Event loop whose time starts at 0 seconds.

    Work in threads (`asyncio.to_thread`) runs in place and takes no time, unless it calls `spend`. The loop cannot
    wait for anything outside the process.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._spent = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def spend(self, seconds: float) -> None:
        """Take this many virtual seconds for work in a 'thread', while other tasks continue."""
        self._spent += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """See the class."""
        outer, self._spent = self._spent, 0.0
        done: asyncio.Future[T] = self.create_future()
        try:
            result, error = func(*args), None
        except Exception as raised:  # handed to the caller
            result, error = None, raised
        self.call_later(self._spent, _settle, done, result, error)
        self._spent = outer
        return done

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("deadlock: every task waits, and no timer is set")
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Selector that never waits: if no file is ready, it advances the clock instead."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._jump(timeout)
        return ready


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
