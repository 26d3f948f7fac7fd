"""Context variable with the episode that turns are sampled for.

    with playing(Episode("12-0", 3)):
        turn = await engine.generate(...)      # all code that runs for this turn can call `current_episode()`

An episode may have several token streams, each with its own trajectory id, which does not identify the episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Episode(NamedTuple):
    """One episode of a group."""

    group_id: str
    place: int
    """Index of the episode in its group."""


_episode: ContextVar[Episode | None] = ContextVar("episode", default=None)


@contextmanager
def playing(episode: Episode | None) -> Iterator[None]:
    """Sample the turns inside the block for `episode`."""
    token = _episode.set(episode)
    try:
        yield
    finally:
        _episode.reset(token)


def current_episode() -> Episode | None:
    """Return the episode of the current context; None outside of episodes."""
    return _episode.get()
