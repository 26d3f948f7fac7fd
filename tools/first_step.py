"""Run a coroutine up to where it first waits: what never waits needs no timer, no task and no event loop."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

R = TypeVar("R")


def first_step(coroutine: Coroutine[Any, Any, R]) -> tuple[bool, R | Awaitable[R]]:
    """(True, its result) where it ended without waiting, else (False, what to await for the result)."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as done:
        return True, done.value
    return False, _rest(coroutine, waits_for)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, R], waits_for: Any) -> Generator[Any, Any, R]:
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # a cancellation: the coroutine's own
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(value)
        except StopIteration as done:
            return done.value
