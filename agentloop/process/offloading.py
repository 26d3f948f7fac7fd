"""Keep the event loop responsive: run work that takes milliseconds in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from agentloop.process.threads import DECODING

R = TypeVar("R")

OFF_LOOP_SIZE = 20_000
"""Number of characters or tokens from which rendering, tokenizing and parsing block the loop for milliseconds. Below
it, switching to a thread (about 100 us) costs more than the work."""


async def off_loop(size: int, function: Callable[..., R], *arguments: Any, **options: Any) -> R:
    """Return `function(*arguments, **options)`, computed in a thread if `size` is large."""
    if size < OFF_LOOP_SIZE:
        return function(*arguments, **options)
    return await DECODING.run(function, *arguments, **options)
