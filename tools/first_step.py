"""Run a coroutine up to its first wait. A coroutine that never waits needs no timer, task or event loop."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

R = TypeVar("R")


def first_step(coroutine: Coroutine[Any, Any, R]) -> tuple[bool, R | Awaitable[R]]:
    """Return (True, result) if the coroutine ended without waiting, else (False, awaitable of the result)."""
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
            except BaseException as error:  # a cancellation, which belongs to the coroutine
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(value)
        except StopIteration as done:
            return done.value
