"""Boxes: machines that clients start, use and copy. A box ends when its client does not renew its lease any more.

Answers with output are frames: a byte for the kind (1 stdout, 2 stderr, 3 the result), four for the length, then the
content.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from agentloop.boxes import Box, BoxSpec, Image, Network
from agentloop.boxes.interface.box import BoxError, BoxLostError
from agentloop.boxes.network.addresses import OwnAddressError, other_address
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import (
    Base64,
    Body,
    OutputBytes,
    Seconds,
    SizeOrDefault,
    Variables,
    documented,
    refuse,
)
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.boxes import HeldBox
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.serving.state.leases import Lease

router = APIRouter(prefix="/v1/boxes", tags=["boxes"])

STDOUT, STDERR, RESULT = 1, 2, 3
_CHUNK = 1 << 18


class ImageBody(Body):
    """An image: one of the two."""

    reference: str | None = None
    """Name of an image of a registry or of the engine, or one of `builtin:`."""
    archive: str | None = None
    """sha256 of a tar archive of a root file system that was sent before."""


class Open(ImageBody):
    """The body that starts a box."""

    network: Literal["none", "allowlist", "public"] = "none"
    hosts: list[str] = Field(default_factory=list)
    workdir: str | None = None
    user: str | None = None
    env: Variables = Field(default_factory=dict)
    cpus: Annotated[float, Field(gt=0)] | None = None
    memory_mb: SizeOrDefault = -1
    storage_mb: SizeOrDefault | None = None
    processes: Annotated[int, Field(gt=0, le=1 << 16)] = 1024
    idle_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    """Seconds without a new request for the box after which it ends, even while a command runs: renew its lease."""


class Copy(Body):
    """The body that copies a box."""

    idle_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0


class Renew(Body):
    """The body that renews leases."""

    ids: list[str]


class Exec(Body):
    """The body that runs a command."""

    command: str | list[str]
    cwd: str | None = None
    env: Variables = Field(default_factory=dict)
    user: str | None = None
    stdin: Base64 = None
    max_seconds: Seconds | None = None
    output_bytes: OutputBytes = 1 << 20
    follow: bool = False
    """Whether output is sent when it comes, up to `output_bytes` of each stream."""


class Forward(Body):
    """The body that leads a port of the box to an address of the daemon's network."""

    port: Annotated[int, Field(gt=0, lt=65536)]
    host: str
    host_port: Annotated[int, Field(gt=0, lt=65536)]


@router.post("", openapi_extra=documented(Open))
async def open_box(request: Request) -> Response:
    """Start a box and answer with its id. Answers 429 if the maximum number is open, 501 without a provider."""
    daemon = Daemon.of(request)
    provider = daemon.boxes.provider
    body = await daemon.reader.parse(request, Open)
    spec = _spec(daemon, body)
    lease = await unless_gone(request, daemon.boxes.open(lambda: provider.start(spec), body.idle_seconds))
    return _opened(lease)


@router.get("")
async def list_boxes(request: Request) -> Response:
    """List the boxes."""
    found = [_about(lease) for lease in Daemon.of(request).boxes]
    return outcomes.answer({"boxes": found})


@router.post("/renew", openapi_extra=documented(Renew))
async def renew(request: Request) -> Response:
    """Renew the leases of boxes; answer with the ids of those that have ended."""
    daemon = Daemon.of(request)
    _ = daemon.boxes.provider
    body = await daemon.reader.parse(request, Renew)
    lost = []
    for id in body.ids:
        try:
            daemon.boxes.held(id)
        except BoxLostError:
            lost.append(id)
    return outcomes.answer({"lost": lost})


@router.post("/prepare", openapi_extra=documented(ImageBody))
async def prepare(request: Request) -> Response:
    """Pull or unpack an image, once for all boxes."""
    daemon = Daemon.of(request)
    provider = daemon.boxes.provider
    body = await daemon.reader.parse(request, ImageBody)
    await unless_gone(request, provider.prepare(_image(daemon, body)))
    return outcomes.answer({})


@router.get("/images/{digest}")
async def has_image(request: Request, digest: str) -> Response:
    """Answer 200 if the daemon has an image, 404 if it has to be sent."""
    if Daemon.of(request).boxes.image(digest) is None:
        raise HTTPException(404, f"The daemon does not have this image: send it with PUT /v1/boxes/images/{digest}.")
    return outcomes.answer({})


@router.put("/images/{digest}")
async def send_image(request: Request, digest: str) -> Response:
    """Keep the body, a tar archive of a root file system, until the daemon ends."""
    daemon = Daemon.of(request)
    with daemon.boxes.new_image() as file:
        found = await daemon.reader.save(request, file, max_mb=daemon.boxes.room_for_images_mb)
        if found != digest:
            refuse("", f"The sha256 of the body is {found}, not {digest}.")
        daemon.boxes.keep_image(file, digest)
    return outcomes.answer({})


@router.post("/{id}/exec", openapi_extra=documented(Exec))
async def run_command(request: Request, id: str) -> Response:
    """Run a command to its end, and answer in frames. It is killed after `max_seconds` and when the client leaves."""
    daemon = Daemon.of(request)
    box = daemon.boxes.held(id).box
    body = await daemon.reader.parse(request, Exec)
    return StreamingResponse(_frames(box, body), media_type="application/octet-stream")


@router.post("/{id}/fork", openapi_extra=documented(Copy))
async def copy_box(request: Request, id: str) -> Response:
    """Start a box with the files of this one, and answer with its id."""
    daemon = Daemon.of(request)
    box = daemon.boxes.held(id).box
    body = await daemon.reader.parse(request, Copy)
    return _opened(await unless_gone(request, daemon.boxes.open(box.fork, body.idle_seconds)))


@router.put("/{id}/files")
async def write_archive(request: Request, id: str, folder: str) -> Response:
    """Unpack the body, a tar archive, into a directory of the box."""
    daemon = Daemon.of(request)
    box = daemon.boxes.held(id).box
    with tempfile.TemporaryFile() as file:
        await daemon.reader.save(request, file, max_mb=daemon.settings.max_image_mb)
        with _refusing_copies():
            await box.receive_archive(file, folder)
    return outcomes.answer({})


@router.get("/{id}/files")
async def read_archive(
    request: Request, id: str, path: str, max_bytes: Annotated[int, Query(gt=0)] = 1 << 30
) -> Response:
    """Answer with a tar archive of a file or directory. Headers say whether it is a file, and how its names begin."""
    box = Daemon.of(request).boxes.held(id).box
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the answer
    try:
        with _refusing_copies():
            sent = await box.send_archive(path, file, max_bytes)
    except BaseException:
        file.close()
        raise
    headers = {"x-is-file": str(int(sent.is_file)), "x-below": sent.below.encode().hex()}
    return StreamingResponse(_content(file), media_type="application/x-tar", headers=headers)


@router.post("/{id}/forward", openapi_extra=documented(Forward))
async def forward(request: Request, id: str) -> Response:
    """Lead a port of the box to an address of the daemon's network."""
    daemon = Daemon.of(request)
    box = daemon.boxes.held(id).box
    body = await daemon.reader.parse(request, Forward)
    _check_network(daemon, "public")
    try:
        address = await other_address(body.host, body.host_port)
    except OwnAddressError as error:
        refuse("host", f"{error} Use an address of another machine.")
    except (OSError, UnicodeError) as error:
        refuse("host", f"The daemon does not know the host {body.host!r} ({error}): use another name, or an address.")
    await box.forward(body.port, address, body.host_port)
    return outcomes.answer({})


@router.post("/{id}/kill")
async def kill_processes(request: Request, id: str) -> Response:
    """Kill every process of the box but its first."""
    await Daemon.of(request).boxes.held(id).box.kill_processes()
    return outcomes.answer({})


@router.delete("/{id}")
async def stop_box(request: Request, id: str) -> Response:
    """End a box and remove everything of it. A box that has ended is no error."""
    await Daemon.of(request).boxes.end(id)
    return outcomes.answer({})


@contextmanager
def _refusing_copies() -> Iterator[None]:
    """Answer 400 if a box cannot copy what the request contains or names."""
    try:
        yield
    except BoxLostError:
        raise
    except BoxError as error:
        raise HTTPException(400, str(error)) from error


def _spec(daemon: Daemon, body: Open) -> BoxSpec:
    _check_network(daemon, body.network)
    return BoxSpec(
        image=_image(daemon, body),
        network=Network(mode=body.network, hosts=tuple(body.hosts)),
        workdir=body.workdir,
        user=body.user,
        env=body.env,
        cpus=body.cpus,
        memory_mb=None if body.memory_mb == -1 else body.memory_mb,
        storage_mb=None if body.storage_mb == -1 else body.storage_mb,
        processes=body.processes,
    )


def _check_network(daemon: Daemon, mode: str) -> None:
    if mode != "none" and daemon.settings.box_network == "none":
        refuse("network", "This daemon gives boxes no network: start it with --box-network public.")


def _image(daemon: Daemon, body: ImageBody) -> Image:
    if (body.archive is None) == (not body.reference):
        refuse("reference", "Set either reference or archive, the image of the box.")
    if body.archive is None:
        return Image(reference=body.reference)
    path = daemon.boxes.image(body.archive)
    if path is None:
        raise HTTPException(412, f"The image {body.archive} was not sent: PUT /v1/boxes/images/{body.archive}.")
    return Image(tarball=path)


def _opened(lease: Lease[HeldBox]) -> Response:
    return outcomes.answer(_about(lease))


def _about(lease: Lease[HeldBox]) -> dict[str, Any]:
    return {
        "id": lease.id,
        "name": lease.item.box.id,
        "idle_seconds": lease.idle_seconds,
        "idle_limit": lease.idle_limit,
        "age_seconds": lease.age_seconds,
    }


async def _frames(box: Box, body: Exec) -> AsyncIterator[bytes]:
    """Run a command, and yield its output and its result. The command is killed if the caller stops reading."""
    frames: asyncio.Queue[bytes] = asyncio.Queue()
    room = {"stdout": body.output_bytes, "stderr": body.output_bytes}

    def follow(name: Literal["stdout", "stderr"], piece: bytes) -> None:
        piece = piece[: room[name]]
        room[name] -= len(piece)
        if piece:
            frames.put_nowait(_frame(STDOUT if name == "stdout" else STDERR, piece))

    running = asyncio.ensure_future(
        box.exec(
            body.command,
            cwd=body.cwd,
            env=body.env,
            user=body.user,
            stdin=body.stdin or b"",
            timeout=body.max_seconds,
            output_bytes=body.output_bytes,
            on_output=follow if body.follow else None,
        )
    )
    running.add_done_callback(lambda _: frames.put_nowait(b""))
    try:
        while frame := await frames.get():
            yield frame
        try:
            result = asdict(running.result())
        except BoxError as error:
            result = {"error": str(error), "lost": isinstance(error, BoxLostError)}
        yield _frame(RESULT, json.dumps(result).encode())
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _frame(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + len(content).to_bytes(4, "big") + content


async def _content(file: Any) -> AsyncIterator[bytes]:
    with file:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        while piece := await asyncio.to_thread(os.read, file.fileno(), _CHUNK):
            yield piece
