"""`SlotTable`: assign slots of the `hf` engine to trajectories, and find cached prefixes for new turns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentloop.engines.hf.cache import SlotCache

MIN_SHARED = 16
"""Number of tokens that two prompts must share before one waits for, or copies, keys and values of the other."""


class SlotTable:
    """Slots are used by running turns, parked for a trajectory between its turns, or free.

    A free slot keeps its content until it is taken, because other prompts may share its prefix (a system prompt, the
    prompt of a group). Free slots are taken first, least recently used first, then parked slots in the same order.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._owner: list[str | None] = [None] * cache.slots
        self._row_of: dict[str, int] = {}
        self._used = np.zeros(cache.slots, np.int64)
        self._fresh = np.ones(cache.slots, bool)
        self._clock = 0

    def take(self, trajectory_id: str, prompt: NDArray[np.int32], active: NDArray[np.bool_]) -> int | None:
        """Return a slot that holds `prompt`. Its `kv_len` counts the tokens that are already computed.

        Return None if all slots are running, or if another turn is about to compute the same prefix.
        """
        cache = self._cache
        common = np.where(self._fresh, cache.common_prefix(prompt[:-1]), 0)
        ready = cache.ready_prefix(common)
        source = int(ready.argmax())
        row = self._row_of.get(trajectory_id)
        best = int(ready[source])
        own = int(ready[row]) if row is not None else 0
        if int(common[active].max(initial=0)) >= max(best, own) + MIN_SHARED:
            return None
        if row is None:
            row = self._victim(active, source if best >= MIN_SHARED else None)
            if row is None:
                return None
        self._disown(row)
        cache.reserve(row, len(prompt))
        reuse = int(ready[row])
        if best >= reuse + MIN_SHARED:
            cache.copy_prefix(source, row, best)
            reuse = best
        cache.tokens[row, : len(prompt)] = prompt
        cache.tok_len[row] = len(prompt)
        cache.kv_len[row] = reuse
        if cache.routing is not None:
            cache.routing.begin(row, reuse)
        self._fresh[row] = True
        return row

    def _victim(self, active: NDArray[np.bool_], source: int | None) -> int | None:
        """Return the least recently used idle slot, free slots first; None if all slots run."""
        idle = np.flatnonzero(~active)
        if not len(idle):
            return None
        free = [int(row) for row in idle if self._owner[row] is None]
        if source in free and len(free) == 1:
            return source
        candidates = np.array([row for row in free if row != source] or idle)
        return int(candidates[self._used[candidates].argmin()])

    def park(self, row: int, trajectory_id: str) -> None:
        """Keep the slot for the next turn of its trajectory."""
        self._clock += 1
        self._used[row] = self._clock
        self.release(trajectory_id)
        self._owner[row] = trajectory_id
        self._row_of[trajectory_id] = row

    def release(self, trajectory_id: str) -> None:
        row = self._row_of.get(trajectory_id)
        if row is not None:
            self._disown(row)

    def _disown(self, row: int) -> None:
        owner = self._owner[row]
        if owner is not None:
            del self._row_of[owner]
            self._owner[row] = None

    def forget(self, row: int) -> None:
        """Discard the content of a slot."""
        self._disown(row)
        self._cache.kv_len[row] = self._cache.tok_len[row] = 0
        # NaN in masked keys would still spread through sums.
        self._cache.kv[:, :, row] = 0

    def outdate(self) -> None:
        """Mark the content of all slots as outdated: turns that start later do not reuse it."""
        self._fresh[:] = False
