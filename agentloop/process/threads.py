"""Run synchronous work off the event loop: one named thread pool for each kind of work.

Kinds do not share threads: slow rewards would otherwise delay a training step or the next turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class Threads(Executor):
    """At most `size` threads, started on demand and named `name`; further calls wait for a free one.

    The threads are daemons: a call that hangs does not keep the process from ending.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._num_threads = 0
        self._num_open = 0
        """Number of calls that run or wait."""

    def submit(self, function: Callable[..., R], /, *args: Any, **arguments: Any) -> Future[R]:
        """Call `function(*args, **arguments)` in a thread; return a future of its result."""
        result: Future[R] = Future()
        with self._lock:
            self._num_open += 1
            is_new = self._num_open > self._num_threads < self.size
            self._num_threads += is_new
        self._calls.put((result, functools.partial(function, *args, **arguments)))
        if is_new:
            threading.Thread(target=self._work, name=self.name, daemon=True).start()
        return result

    async def run(self, function: Callable[..., R], /, *args: Any, **arguments: Any) -> R:
        """Return `function(*args, **arguments)`, called in a thread with the context of the caller.

        If the caller is cancelled, a running call continues, and a waiting call is dropped.
        """
        context = contextvars.copy_context()
        call = functools.partial(context.run, function, *args, **arguments)
        return await asyncio.get_running_loop().run_in_executor(self, call)

    @property
    def is_busy(self) -> bool:
        """Whether a call runs or waits."""
        return self._num_open > 0

    async def idle(self) -> None:
        """Wait until a pool of one thread has finished the calls submitted so far."""
        assert self.size == 1, "other pools end calls in any order"
        await self.run(int)

    def _work(self) -> None:
        while True:
            result, function = self._calls.get()
            if result.set_running_or_notify_cancel():
                _settle(result, function)
            with self._lock:
                self._num_open -= 1
            del result, function  # free their memory while the thread waits


def _settle(result: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result.set_result(function())
    except StopIteration as error:  # a future of asyncio refuses it, so its caller would wait forever
        stopped = RuntimeError("it raised StopIteration, as next() does if nothing is left")
        result.set_exception(stopped.with_traceback(error.__traceback__))
    except BaseException as error:
        result.set_exception(error)


LEARNER = Threads("agentloop-learner", 1)
"""Steps, captures and loads of the learner: one at a time, because they change the same weights."""
FILES = Threads("agentloop-files", 1)
"""Metrics and trajectories of a run, in the order in which they are written."""
DECODING = Threads("agentloop-decoding", max(2, min(8, os.cpu_count() or 1)))
"""Tokenizing, parsing, stop strings and images, which turns wait for."""
REWARDS = Threads("agentloop-reward", 64)
"""Rewards without `async`. Most of them wait for I/O, so there are more threads than cores."""
TOOLS = Threads("agentloop-tool", 128)
"""Tools and environments without `async`."""


def threaded(function: Callable[..., Any], threads: Threads = TOOLS) -> Callable[..., Any]:
    """Return a coroutine function that runs `function` in a thread and awaits its result if it is awaitable."""

    @functools.wraps(function)
    async def call(*args: Any, **arguments: Any) -> Any:
        result = await threads.run(function, *args, **arguments)
        return await result if inspect.isawaitable(result) else result

    return call


def run_in_threads(cls: type, names: Iterable[str], threads: Threads = TOOLS) -> None:
    """Turn the named methods of `cls` that are not `async` into coroutine functions."""
    for name in names:
        method = getattr(cls, name)
        if inspect.isfunction(method) and not inspect.iscoroutinefunction(method):
            setattr(cls, name, threaded(method, threads))


_SWITCH_SECONDS = 0.0005


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let the threads of this process wait for Python's lock for at most 0.5 ms, not 5, in this block.

    A learner or engine releases the lock for each of its many short operations. Beside busy agent loops it would wait
    for it longer than it computes (`benchmarks.rollout.thread_switches`).
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
