"""Listen to the tokens of a turn while it is sampled.

    with listening(hear):
        turn = await engine.generate(...)      # meanwhile: hear([17, 4]), hear([9]), ...

A context variable holds the listener, so that engines which wrap others need not pass it on. An engine reports ids in
their order, from its event loop; ids that it does not report come with the turn. Only the returned turn is valid: if an
engine is lost in the middle, the next one may sample other tokens.
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
