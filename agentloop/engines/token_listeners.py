"""Listen to the tokens of a turn while it is sampled.

    with listening(hear):
        turn = await engine.generate(...)      # calls hear([17, 4]), hear([9]), ... while it samples

A context variable holds the listener, so that wrapping engines need not pass it on. An engine reports ids in order,
from its event loop, but not necessarily all of them. Only the returned turn is final: if an engine dies during a turn,
the next engine may sample other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[Sequence[int]], None]
"""Function that takes the ids sampled since its last call."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(hear: Listener | None) -> Iterator[None]:
    """Call `hear` with the tokens of turns sampled in this context, one turn at a time."""
    token = _listener.set(hear)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Listener | None:
    """Return the listener of the current turn."""
    return _listener.get()
