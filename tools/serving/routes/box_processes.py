"""Programs in boxes that clients write to while they run. Answers come after 20 s at the latest: 204 means go on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import Base64, Body, Variables, documented
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.boxes import HeldProcess
from agentloop.tools.serving.state.daemon import Daemon

router = APIRouter(prefix="/v1/boxes/{id}/processes", tags=["boxes"])

_NOT_YET = 204


class Spawn(Body):
    """The body that starts a program."""

    command: str | list[str]
    cwd: str | None = None
    env: Variables = Field(default_factory=dict)
    user: str | None = None
    tty: bool = False


class Input(Body):
    """The body that writes to a program."""

    data: Base64 = None
    close: bool = False
    """Whether its input ends after the data."""


class Output(Body):
    """The body that asks for output."""

    after: Annotated[int, Field(ge=0)] = 0
    """Bytes that the client has; the daemon keeps the following ones until they are confirmed so."""


@router.post("", openapi_extra=documented(Spawn))
async def spawn(request: Request, id: str) -> Response:
    """Start a program, and answer with its number."""
    daemon = Daemon.of(request)
    held = daemon.boxes.held(id)
    body = await daemon.reader.parse(request, Spawn)
    process = await held.box.spawn(body.command, cwd=body.cwd, env=body.env, user=body.user, tty=body.tty)
    return outcomes.answer({"number": held.add(process)})


@router.post("/{number}/input", openapi_extra=documented(Input))
async def write(request: Request, id: str, number: int) -> Response:
    """Write to its input or its terminal, or close it."""
    process = _process(request, id, number).process
    body = await Daemon.of(request).reader.parse(request, Input)
    if body.data:
        await unless_gone(request, process.write(body.data))
    if body.close:
        await process.close_stdin()
    return outcomes.answer({})


@router.post("/{number}/output", openapi_extra=documented(Output))
async def read(request: Request, id: str, number: int) -> Response:
    """Answer with the next output as raw bytes, empty at its end."""
    process = _process(request, id, number)
    body = await Daemon.of(request).reader.parse(request, Output)
    data = await unless_gone(request, process.output(body.after))
    return Response(status_code=_NOT_YET) if data is None else Response(data, media_type="application/octet-stream")


@router.post("/{number}/interrupt")
async def interrupt(request: Request, id: str, number: int) -> Response:
    """Send SIGINT to its foreground process group."""
    await _process(request, id, number).process.interrupt()
    return outcomes.answer({})


@router.post("/{number}/kill")
async def kill(request: Request, id: str, number: int) -> Response:
    """Kill it and every process that it has started."""
    await _process(request, id, number).process.kill()
    return outcomes.answer({})


@router.get("/{number}/code")
async def wait(request: Request, id: str, number: int) -> Response:
    """Answer with its exit status when it has ended."""
    code = await unless_gone(request, _process(request, id, number).code())
    return Response(status_code=_NOT_YET) if code is None else outcomes.answer({"code": code})


def _process(request: Request, id: str, number: int) -> HeldProcess:
    return Daemon.of(request).boxes.held(id).process(number)
