"""`Boxes`: the boxes that clients of the daemon hold, their programs, and the images that clients have sent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, cast

from fastapi import HTTPException

from agentloop import boxes
from agentloop.boxes.interface.archives import ArchiveBox
from agentloop.boxes.interface.box import Box, BoxLostError, BoxProvider, Process
from agentloop.errors import UserError
from agentloop.process import owned_folders
from agentloop.tools.serving.state.leases import Lease, Leases
from agentloop.tools.serving.state.settings import Settings

_READ_SECONDS = 20.0
"""Longest time that an answer about a running program is delayed; the client asks again."""


class HeldProcess:
    """A program in a box. Its output is kept until the client has confirmed that it has it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._start = 0
        self._output = b""
        self._has_ended = False
        self._reading = asyncio.Lock()
        self._ending: asyncio.Future[int] | None = None

    async def output(self, after: int) -> bytes | None:
        """Return the output after so many bytes, empty at its end; None if there is none for a while."""
        async with self._reading:
            if after >= self._start + len(self._output):
                self._start, self._output = after, b""
            while not self._output and not self._has_ended:
                try:
                    async with asyncio.timeout(_READ_SECONDS):
                        self._output = await self.process.read()
                except TimeoutError:
                    return None
                self._has_ended = not self._output
            return self._output[after - self._start :]

    async def code(self) -> int | None:
        """Return the exit status; None if the program goes on for a while."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self.process.wait())
        done, _ = await asyncio.wait([self._ending], timeout=_READ_SECONDS)
        return self._ending.result() if done else None

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._ending is not None:
            self._ending.cancel()


class HeldBox:
    """A box that a client holds."""

    def __init__(self, box: ArchiveBox) -> None:
        self.box = box
        self._processes: dict[int, HeldProcess] = {}
        self._numbers = itertools.count(1)

    def add(self, process: Process) -> int:
        """Keep a program, and return its number."""
        number = next(self._numbers)
        self._processes[number] = HeldProcess(process)
        return number

    def process(self, number: int) -> HeldProcess:
        """Return a program. Raises `HTTPException` 404."""
        if number not in self._processes:
            raise HTTPException(404, f"The box has no program {number}.")
        return self._processes[number]

    async def stop(self) -> None:
        for process in self._processes.values():
            process.close()
        await self.box.stop()


class Boxes:
    """Boxes of one provider, each of which lives as long as its client renews its lease."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._leases: Leases[HeldBox] = Leases(
            "box", "/v1/boxes", lambda held: held.stop(), settings.max_boxes, "--max-boxes"
        )
        self._provider: BoxProvider | None = None
        self._folder = Path()
        self._image_bytes = 0

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease[HeldBox]]:
        return iter(self._leases)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve boxes until the block ends. Raises `UserError` if the provider cannot make any."""
        if self._settings.boxes is None:
            yield
            return
        async with AsyncExitStack() as stack:
            self._folder = stack.enter_context(owned_folders.temporary("agentloop-images-"))
            provider = boxes.create(self._settings.boxes, **self._settings.box_options)
            await provider.open()
            self._provider = provider
            stack.push_async_callback(provider.close)
            await stack.enter_async_context(self._leases.kept())
            yield

    @property
    def provider(self) -> BoxProvider:
        """Raises `HTTPException` 501 if the daemon serves no boxes."""
        if self._provider is None:
            raise HTTPException(501, "This daemon serves no boxes: start it with --boxes rootfs, docker or podman.")
        return self._provider

    async def open(self, start: Callable[[], Awaitable[Box]], idle_seconds: float) -> Lease[HeldBox]:
        """Lease a box. Raises `HTTPException` 429 if the maximum number is open, and what `start` raises."""
        assert self._provider is not None, "ask for the provider first"

        async def make() -> HeldBox:
            box = await start()
            if not hasattr(box, "receive_archive"):
                await box.stop()
                raise UserError(
                    f"Boxes of the provider {self._settings.boxes} take no archives, so no daemon serves them."
                )
            return HeldBox(cast(ArchiveBox, box))

        return await self._leases.open(make, idle_seconds)

    def held(self, id: str) -> HeldBox:
        """Return a box, and renew its lease. Raises `BoxLostError`."""
        try:
            lease = self._leases.find(id)
        except HTTPException as error:
            raise BoxLostError(f"The box {id} has ended, and its files are lost.") from error
        lease.used = time.monotonic()
        return lease.item

    async def end(self, id: str) -> None:
        """Stop a box; one that has ended is no error."""
        with contextlib.suppress(HTTPException):
            await self._leases.end(id)

    def image(self, digest: str) -> Path | None:
        """Return the archive of an image that a client has sent."""
        path = self._folder / digest
        return path if digest.isalnum() and path.is_file() else None

    @property
    def room_for_images_mb(self) -> int:
        """MiB that clients may still send."""
        return max(self._settings.max_image_mb - (self._image_bytes >> 20), 0)

    def new_image(self) -> IO[bytes]:
        """Return a file to write an image to."""
        _ = self.provider
        return tempfile.NamedTemporaryFile(dir=self._folder)

    def keep_image(self, file: IO[bytes], digest: str) -> None:
        """Keep an image that has arrived under its sha256."""
        path = self._folder / digest
        if not path.exists():
            path.hardlink_to(file.name)
            self._image_bytes += path.stat().st_size
