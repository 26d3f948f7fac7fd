"""Images of a provider, each made only once for all boxes that start from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from agentloop.boxes.interface.spec import Image

Made = TypeVar("Made")


class PreparedImages(Generic[Made]):
    """Results of `make` for each image. It runs in a thread, and again if it failed for an image."""

    def __init__(self, make: Callable[[Image], Made]) -> None:
        self._make = make
        self._made: dict[Image, asyncio.Task[Made]] = {}

    async def get(self, image: Image) -> Made:
        """Return an image. Raises what `make` raises. Cancelling one caller does not affect the others."""
        if image not in self._made:
            task = asyncio.create_task(asyncio.to_thread(self._make, image))
            task.add_done_callback(lambda done: self._forget_failure(image, done))
            self._made[image] = task
        return await asyncio.shield(self._made[image])

    def _forget_failure(self, image: Image, done: asyncio.Task[Made]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._made.pop(image, None)
