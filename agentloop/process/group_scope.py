"""`GroupScope`: what the episodes of a group share on their worker, such as a machine that is copied for each.

async with GroupScope(episodes=8):
    ...                                                   # in an episode:
    scope = current_group()
    machine = scope.share("machine", PreparedMachine)     # the same object for all episodes of the group
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self, TypeVar

from agentloop.errors import described

_log = logging.getLogger(__name__)


class Shared(Protocol):
    """Something that episodes of a group share."""

    async def close(self) -> None:
        """Release it, after all episodes of the group have ended."""


Kind = TypeVar("Kind", bound=Shared)


class GroupScope:
    """Holds what the episodes share, and closes it when the group ends, also by an error or a cancellation.

    A failure to close it is logged.
    """

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        """Number of episodes of the group that this worker plays."""
        self._shared: dict[Hashable, Any] = {}
        self._token: Token[GroupScope | None] | None = None

    def share(self, key: Hashable, make: Callable[[], Kind]) -> Kind:
        """Return the object of this key, which the first call makes."""
        if key not in self._shared:
            self._shared[key] = make()
        shared: Kind = self._shared[key]
        return shared

    async def __aenter__(self) -> Self:
        self._token = _group.set(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._token is not None
        _group.reset(self._token)
        while self._shared:
            key, shared = self._shared.popitem()
            try:
                await shared.close()
            except Exception as error:  # of a machine, for example: the episodes have ended, and others continue
                _log.warning("What the episodes of a group shared could not be closed (%s): %s", key, described(error))


_group: ContextVar[GroupScope | None] = ContextVar("group", default=None)


def current_group() -> GroupScope | None:
    """Return the scope of the group whose episode runs here; None outside of workers."""
    return _group.get()
