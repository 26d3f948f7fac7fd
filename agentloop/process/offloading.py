"""Keep the event loop free: work that takes milliseconds goes to a thread, work of microseconds stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from agentloop.process.threads import DECODING

R = TypeVar("R")

OFF_LOOP_SIZE = 20_000
"""Characters or tokens from which rendering, tokenising and parsing would hold the loop for milliseconds. Below, a hop
to a thread (some 100 us) costs more than the work."""


async def off_loop(size: int, function: Callable[..., R], *arguments: Any) -> R:
    """Return `function(*arguments)`, computed in a thread if `size` is large."""
    if size < OFF_LOOP_SIZE:
        return function(*arguments)
    return await DECODING.run(function, *arguments)
