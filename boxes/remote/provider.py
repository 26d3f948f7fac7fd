"""`RemoteProvider`: boxes of one daemon or several."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any

import httpx

from agentloop.boxes.copies import pack_tree
from agentloop.boxes.images.prepared import PreparedImages
from agentloop.boxes.interface.box import BoxError
from agentloop.boxes.interface.spec import BoxSpec, Image
from agentloop.boxes.remote.box import RemoteBox
from agentloop.boxes.remote.connection import DaemonConnection, DaemonDownError, FullError
from agentloop.errors import UserError

_CHECK_SECONDS = 10.0
_FULL_PAUSE = 1.0


class RemoteProvider:
    """Boxes of daemons that `agentloop tools serve --boxes PROVIDER` started, on this or other machines.

    `address` is one daemon, several separated by commas, or a list; the default is the variable AGENTLOOP_BOXES.
    `token` is the daemons' token, by default AGENTLOOP_TOKEN. A box starts where this client has the fewest; if all
    daemons are full or cannot be reached, it waits for `patience` seconds. This process renews the leases of its boxes:
    a daemon ends a box whose lease was not renewed for `lease_seconds`.
    """

    def __init__(
        self,
        *,
        address: str | Sequence[str] | None = None,
        token: str | None = None,
        lease_seconds: float = 60.0,
        patience: float = 600.0,
    ) -> None:
        address = os.environ.get("AGENTLOOP_BOXES", "") if address is None else address
        given = address.split(",") if isinstance(address, str) else address
        self._addresses = [each.strip() for each in given if each.strip()]
        if not self._addresses:
            raise UserError(
                "The provider remote needs the `address` of a daemon, such as http://127.0.0.1:8080: set it, or "
                "AGENTLOOP_BOXES in the environment."
            )
        self._token = token or os.environ.get("AGENTLOOP_TOKEN") or None
        self._lease_seconds = lease_seconds
        self._patience = patience
        self._daemons: list[DaemonConnection] = []
        self._images = PreparedImages(_archive)
        self._boxes: dict[DaemonConnection, set[RemoteBox]] = {}
        self._renewing: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect to the daemons. Raises `UserError` if none answers, or one serves no boxes."""
        self._daemons = [DaemonConnection(address, self._token) for address in self._addresses]
        self._boxes = {daemon: set() for daemon in self._daemons}
        try:
            problems = await asyncio.gather(*map(_problem, self._daemons))
            if all(problems):
                raise UserError(
                    f"No daemon that serves boxes answers. Start one with `agentloop tools serve --boxes rootfs`. "
                    f"{' '.join(filter(None, problems))}"
                )
        except BaseException:
            await self._disconnect()
            raise
        self._renewing = [asyncio.create_task(self._renew(daemon)) for daemon in self._daemons]

    async def prepare(self, image: Image) -> None:
        """Let each daemon pull or unpack an image. Raises `UserError` if it is unavailable."""
        await asyncio.gather(*(self._prepare(daemon, image) for daemon in self._daemons))

    async def _prepare(self, daemon: DaemonConnection, image: Image) -> None:
        try:
            await daemon.call("POST", "/v1/boxes/prepare", await self._image(daemon, image))
        except DaemonDownError:
            return  # it has no boxes

    async def _image(self, daemon: DaemonConnection, image: Image) -> dict[str, str]:
        """Return the daemon's name of an image, after sending it if the daemon lacks it."""
        if image.reference is not None:
            return {"reference": image.reference}
        digest, archive = await self._images.get(image)
        path = f"/v1/boxes/images/{digest}"
        try:
            await daemon.call("GET", path)
        except UserError:  # the daemon lacks it
            await daemon.call("PUT", path, file=archive)
        return {"archive": digest}

    async def start(self, spec: BoxSpec) -> RemoteBox:
        """Start a box. Raises `UserError` if the spec cannot be met, `BoxError` if the start fails."""
        assert self._daemons, "call open first"
        body = {
            "network": spec.network.mode,
            "hosts": list(spec.network.hosts),
            "workdir": spec.workdir,
            "user": spec.user,
            "env": dict(spec.env),
            "cpus": spec.cpus,
            "memory_mb": spec.memory_mb or -1,
            "storage_mb": spec.storage_mb,
            "processes": spec.processes,
            "idle_seconds": self._lease_seconds,
        }

        async def on(daemon: DaemonConnection) -> httpx.Response:
            return await daemon.call("POST", "/v1/boxes", {**await self._image(daemon, spec.image), **body})

        return await self._started(on, self._daemons, spec)

    async def _copy(self, original: RemoteBox) -> RemoteBox:
        async def on(_: DaemonConnection) -> httpx.Response:
            return await original.call("POST", "fork", {"idle_seconds": self._lease_seconds})

        return await self._started(on, [original.daemon], original.spec)

    async def _started(
        self,
        start: Callable[[DaemonConnection], Awaitable[httpx.Response]],
        daemons: Sequence[DaemonConnection],
        spec: BoxSpec,
    ) -> RemoteBox:
        """Start a box on the first daemon that takes one, or wait. Raises what `start` raises."""
        deadline = time.monotonic() + self._patience
        while True:
            problem: BoxError | None = None
            for daemon in sorted(daemons, key=lambda each: each.boxes):
                daemon.boxes += 1
                try:
                    about = (await start(daemon)).json()
                except (FullError, DaemonDownError) as error:
                    daemon.boxes -= 1
                    problem = error
                except BaseException:
                    daemon.boxes -= 1
                    raise
                else:
                    box = RemoteBox(daemon, about["id"], about["name"], spec, self._copy, self._forget)
                    self._boxes[daemon].add(box)
                    return box
            assert problem is not None
            if time.monotonic() > deadline:
                raise problem
            await asyncio.sleep(_FULL_PAUSE)

    def _forget(self, box: RemoteBox) -> None:
        box.daemon.boxes -= 1
        self._boxes[box.daemon].discard(box)

    async def _renew(self, daemon: DaemonConnection) -> None:
        """Renew the leases of the boxes of a daemon; drop those that it ended, or all if it is gone for too long."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._lease_seconds / 4)
            boxes = {box.generation: box for box in self._boxes[daemon]}
            try:
                answer = await daemon.call(
                    "POST", "/v1/boxes/renew", {"ids": list(boxes)}, seconds=self._lease_seconds / 4
                )
                lost = answer.json()["lost"]
                renewed = time.monotonic()
            except (BoxError, UserError):
                lost = list(boxes) if time.monotonic() > renewed + self._lease_seconds else []
            for id in lost:
                boxes[id].end()

    async def close(self) -> None:
        """Stop all remaining boxes."""
        for task in self._renewing:
            task.cancel()
        await asyncio.gather(*self._renewing, return_exceptions=True)
        await asyncio.gather(*(box.stop() for boxes in self._boxes.values() for box in list(boxes)))
        await self._disconnect()

    async def _disconnect(self) -> None:
        await asyncio.gather(*(daemon.close() for daemon in self._daemons))
        self._daemons = []


async def _problem(daemon: DaemonConnection) -> str | None:
    """Return why a daemon cannot be reached, None if it serves boxes. Raises `UserError` if retrying cannot help."""
    try:
        await daemon.call("POST", "/v1/boxes/renew", {"ids": []}, seconds=_CHECK_SECONDS)
    except BoxError as error:
        return str(error)
    return None


def _archive(image: Image) -> tuple[str, IO[bytes]]:
    """Return an image of this machine as an archive, and its sha256. Raises `UserError`. Blocks."""
    if image.dockerfile is not None:
        raise UserError(
            f"The provider remote cannot build the Dockerfile of {image.dockerfile}: build it, and name the image or "
            "a tar archive of it (`docker export CONTAINER`)."
        )
    path = image.tarball or image.tree
    assert path is not None
    if not path.exists():
        raise UserError(f"The image {path} does not exist: correct its path.")
    archive: Any = path.open("rb") if path.is_file() else pack_tree(path)
    return hashlib.file_digest(archive, "sha256").hexdigest(), archive
