"""Which episode a turn is sampled for.

    with playing(Episode("12-0", 3)):
        turn = await engine.generate(...)      # `current_episode()` is known to everything that runs for this turn

An episode may have several token streams, each with a trajectory id of its own. No id says which episode it is of.
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
    """Sample the turns within for `episode`."""
    token = _episode.set(episode)
    try:
        yield
    finally:
        _episode.reset(token)


def current_episode() -> Episode | None:
    """Return the episode that is played here, or None outside of any."""
    return _episode.get()
