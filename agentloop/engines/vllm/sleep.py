"""`SleepMode`: frees vLLM's GPU memory, and allocates it again, first for weights, then for the cache."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from agentloop.engines.base import EngineDead
from agentloop.engines.vllm.core import unless_dead

_PARTS = ("weights", "kv_cache")
"""vLLM's names of the parts that can be woken separately."""
_KEEPS, _DISCARDS = 1, 2
"""vLLM's levels of sleep: copy the weights to the host, or discard them."""


class SleepMode:
    """The parts of vLLM that are off the GPU. vLLM schedules nothing until all are back, and then starts by itself.

    Any failure leaves vLLM in an unknown state and raises `EngineDead`.
    """

    def __init__(self) -> None:
        self._away: tuple[str, ...] = ()

    @property
    def is_on(self) -> bool:
        return bool(self._away)

    async def begin(self, llm: Any, *, keep_weights: bool) -> None:
        """Free the memory while sampling is paused. Requests in flight lose their keys and values."""
        self._away = _PARTS
        level = _KEEPS if keep_weights else _DISCARDS
        await _ask(llm, llm.sleep(level, "keep"), "free its GPU memory")

    async def bring_weights(self, llm: Any) -> None:
        """Allocate memory for the weights, and restore the weights if they were kept."""
        if "weights" in self._away:
            await _ask(llm, llm.wake_up(["weights"]), "allocate memory for its weights")
            self._away = ("kv_cache",)

    async def end(self, llm: Any) -> None:
        await self.bring_weights(llm)
        await _ask(llm, llm.wake_up(["kv_cache"]), "allocate memory for its cache")
        self._away = ()


async def _ask(llm: Any, answer: Awaitable[Any], what: str) -> None:
    try:
        await unless_dead(llm, answer)
    except EngineDead:
        raise
    except Exception as error:  # the boundary to vLLM
        raise EngineDead(f"vLLM could not {what}: {type(error).__name__}: {error}") from error
