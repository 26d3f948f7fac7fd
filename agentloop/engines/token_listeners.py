"""Hearing of a turn while it is sampled.

    with listening(hear):
        turn = await engine.generate(...)      # meanwhile: hear([17, 4]), hear([9]), ...

Who listens is known to everything that runs for this turn, so that engines which wrap others need not hand it on. An
engine tells what it can: ids in their order, from its event loop. What it does not tell comes with the turn. Only the
turn itself counts: where an engine was lost in the middle, the next one may sample something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[Sequence[int]], None]
"""Takes the ids that are new since it was called last."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(hear: Listener | None) -> Iterator[None]:
    """`hear` is told of the turns that are sampled within, of which there is one at a time."""
    token = _listener.set(hear)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Listener | None:
    """Of the turn that is asked for here."""
    return _listener.get()
