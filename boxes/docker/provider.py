"""`DockerProvider`: boxes that are containers of a docker engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from agentloop.boxes.docker.box import DockerBox
from agentloop.boxes.docker.engine import BoxEngine
from agentloop.boxes.images.prepared import PreparedImages
from agentloop.boxes.interface.box import BoxError
from agentloop.boxes.interface.spec import BoxSpec, Image, check_limits
from agentloop.boxes.network.proxy import variables
from agentloop.errors import SandboxError
from agentloop.sandboxes.levels.docker_engine import Engine

_logger = logging.getLogger(__name__)


class DockerProvider:
    """Boxes in containers of the engine that the docker command line uses.

    A container ends when this process ends, even by SIGKILL: its first process reads from a connection of this one.
    Containers left by an engine failure, an attack or a slow engine are removed by the machine's other providers, when
    they open and every `sweep_seconds`. `memory_mb` and `storage_mb` are the defaults for boxes; not every engine can
    limit storage.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        storage_mb: int | None = None,
        memory_mb: int = 2048,
        sweep_seconds: float = 60.0,
    ) -> None:
        check_limits(memory_mb=memory_mb, storage_mb=storage_mb)
        self._address = address
        self._storage_mb = storage_mb
        self._memory_mb = memory_mb
        self._engine: BoxEngine | None = None
        self._limits_storage = False
        self._images = PreparedImages(self._image)
        self._boxes: set[DockerBox] = set()
        self._sweep_seconds = sweep_seconds
        self._sweeping: asyncio.Task[None] | None = None
        self._undoing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect to the engine, and remove the boxes that dead owners left. Raises `UserError` without an engine."""
        self._engine = await asyncio.to_thread(self._connect)
        self._limits_storage = await asyncio.to_thread(self._engine.limits_storage)
        await asyncio.to_thread(self._engine.remove_leftovers)
        self._sweeping = asyncio.create_task(self._sweep(self._engine))

    async def _sweep(self, engine: BoxEngine) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await asyncio.to_thread(engine.remove_leftovers)
            except SandboxError as error:  # the next sweep may work
                _logger.warning("Cannot search for boxes of dead processes: %s.", error)

    def _connect(self) -> BoxEngine:
        return BoxEngine(Engine.connect(self._address))

    async def prepare(self, image: Image) -> None:
        """Pull, build or import an image. Raises `UserError` if it is unavailable."""
        await self._images.get(image)

    def _image(self, image: Image) -> tuple[str, str | None]:
        """Return the id and the user of an image."""
        assert self._engine is not None, "call open first"
        return self._engine.image(image)

    async def start(self, spec: BoxSpec) -> DockerBox:
        """Start a box. Raises `UserError` if the spec cannot be met, `BoxError` if the start fails."""
        image, user = await self._images.get(spec.image)
        ways = variables() if spec.network.mode == "allowlist" else {}
        return await self._finished(
            self._start(image, replace(spec, user=spec.user or user, env=ways | dict(spec.env)))
        )

    async def _finished(self, starting: Coroutine[Any, Any, DockerBox]) -> DockerBox:
        """Return a box that starts in threads. If the caller is cancelled, the box is stopped once it has started."""
        task = asyncio.create_task(starting)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            undoing = asyncio.create_task(_stop_at_once(task))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise

    async def _start(self, image: str, spec: BoxSpec) -> DockerBox:
        assert self._engine is not None, "call open first"
        storage_mb = spec.storage_mb or self._storage_mb
        if storage_mb and not self._limits_storage:
            _logger.warning("The engine cannot limit what a box writes: %d MB are not enforced.", storage_mb)
            storage_mb = None
        name = f"box-{uuid.uuid4().hex[:12]}"
        limited = replace(spec, memory_mb=spec.memory_mb or self._memory_mb)
        container, lease = await asyncio.to_thread(self._engine.start, name, image, limited, storage_mb)
        box = DockerBox(
            self._engine, name, container, lease, spec, lambda box: self._finished(self._fork(box)), self._boxes.discard
        )
        self._boxes.add(box)
        try:
            await box.open_network()
        except BoxError:
            await box.stop()
            raise
        return box

    async def _fork(self, original: DockerBox) -> DockerBox:
        assert self._engine is not None
        image = await original.commit()
        try:
            box = await self._start(image, original.spec)
        except BoxError:
            await asyncio.to_thread(self._engine.remove_image, image)
            raise
        box.images.append(image)
        return box

    async def close(self) -> None:
        """Stop all remaining boxes, and close the connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await asyncio.gather(*self._undoing)
        await asyncio.gather(*(box.stop() for box in list(self._boxes)))
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
            self._engine = None


async def _stop_at_once(starting: asyncio.Task[DockerBox]) -> None:
    with contextlib.suppress(BoxError):
        await (await starting).stop()
