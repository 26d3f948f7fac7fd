"""`ConcurrencyLimit`: adapts the number of episodes of an engine by additive increase, multiplicative decrease."""

from __future__ import annotations

FULL = 0.9
"""Fraction of the cache above which the engine evicts keys and values that it will need again."""
CLEAR = 0.75
"""Fraction of the cache below which more episodes may start."""
GROWTH = 0.25
"""Growth of the limit per episode that ends, which is a quarter per turnover."""
DECREASE = 0.8


class ConcurrencyLimit:
    """Limit on the episodes in flight on one engine.

    It counts the KV cache of all trajectories, including those that wait for a tool: an engine treats their cache as
    free and would recompute it later. The limit starts with the number of episodes that fit at maximal length, grows
    while it is reached and the cache has room, and falls when the cache is full. Without a cache size it is `most`.
    `cache_tokens` is the size of the cache, `longest` the largest number of tokens of a trajectory.
    """

    def __init__(self, most: int, *, cache_tokens: int | None, longest: int) -> None:
        assert most >= 1
        self._most = most
        self._cache_tokens = cache_tokens
        self._limit = float(most)
        if cache_tokens:
            self._limit = float(min(max(cache_tokens // longest, 1), most))

    @property
    def limit(self) -> int:
        return int(self._limit)

    def room(self, in_flight: int) -> int:
        """Return how many episodes may start now."""
        return max(self.limit - in_flight, 0)

    def cache_use(self, resident_tokens: int) -> float | None:
        return resident_tokens / self._cache_tokens if self._cache_tokens else None

    def observe(self, *, in_flight: int, ended: int, resident_tokens: int) -> None:
        """Adapt the limit to the episodes in flight and ended since the last call, and to the tokens in flight."""
        use = self.cache_use(resident_tokens)
        if use is None:
            return
        if use > FULL:
            # Lower it only once until the surplus episodes have ended, because they fill the cache meanwhile.
            if in_flight <= self.limit:
                self._limit = max(self._limit * DECREASE, 1.0)
        elif use < CLEAR and in_flight + ended >= self.limit:
            self._limit = min(self._limit + GROWTH * ended, float(self._most))
