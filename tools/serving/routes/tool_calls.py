"""/v1/tools: the tools of the rollout loop, for clients with their own loop.

Parts of content have MCP's form: {"type": "text", "text"} and {"type": "image", "data", "mimeType"}.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from agentloop.tools.base import ToolResult
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import Body, decode_base64, documented, refuse
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.daemon import Daemon
from agentloop.tools.sessions import ToolSessions
from agentloop.types.messages import Content, ToolCall
from agentloop.vision.decoding import ImageBudget

router = APIRouter(prefix="/v1/tools", tags=["tools"])


class Call(Body):
    """The body of a call."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    session: str | None = None
    """Id of the tool session whose state the call uses; without it, the call has a new state."""


class OpenToolSession(Body):
    """The body that opens a tool session."""

    task: dict[str, Any] = Field(default_factory=dict)
    """Row of the dataset."""
    seed: int = 0
    images: Annotated[list[str], Field(max_length=64)] = Field(default_factory=list)
    """Images that the trajectory has shown: PNG, JPEG, ... in base64."""
    idle_seconds: Annotated[float, Field(gt=0, le=86400)] = 1800.0


@router.get("")
async def list_tools(request: Request) -> Response:
    """List the tools: name, description and JSON schema of the parameters."""
    functions = [schema["function"] for schema in Daemon.of(request).toolbox.toolset.schemas]
    return outcomes.answer({"tools": functions})


@router.post("/sessions", openapi_extra=documented(OpenToolSession))
async def open_tool_session(request: Request) -> Response:
    """Open all tools for one trajectory, and answer with the id of this tool session."""
    daemon = Daemon.of(request)
    body = await daemon.reader.parse(request, OpenToolSession)
    budget = ImageBudget()
    images = await asyncio.to_thread(
        lambda: [_read_image(index, text, budget) for index, text in enumerate(body.images)]
    )

    async def make() -> ToolSessions:
        return daemon.toolbox.toolset.sessions(secrets.token_hex(8), body.task, body.seed, images)

    lease = await daemon.toolbox.sessions.open(make, body.idle_seconds)
    return outcomes.answer({"id": lease.id, "idle_seconds": lease.idle_limit})


@router.delete("/sessions/{id}")
async def close_tool_session(request: Request, id: str) -> Response:
    """End a tool session, so that the tools release their resources."""
    await Daemon.of(request).toolbox.sessions.end(id)
    return outcomes.answer({})


@router.post("/{name}/call", openapi_extra=documented(Call))
async def call_tool(request: Request, name: str) -> Response:
    """Call a tool. A failed call is a result, as in the loop: `is_error`, and `failure` names the cause."""
    daemon = Daemon.of(request)
    body = await daemon.reader.parse(request, Call)
    tool = await daemon.toolbox.ready(name)
    call = ToolCall(name, body.arguments, "call_0")
    deadline = time.monotonic() + min(tool.timeout, daemon.settings.max_seconds)
    if body.session is not None:
        with daemon.toolbox.sessions.use(body.session) as sessions:
            result = await unless_gone(request, sessions.call(call, deadline))
    else:
        sessions = daemon.toolbox.toolset.sessions(secrets.token_hex(8), {}, 0)
        try:
            result = await unless_gone(request, sessions.call(call, deadline))
        finally:
            await sessions.close()
    outcomes.note(request, f"failure_{result.failure}" if result.failure else "error" if result.is_error else "success")
    return outcomes.answer(await asyncio.to_thread(_result, result) if _has_image(result.content) else _result(result))


def _result(result: ToolResult) -> dict[str, Any]:
    return {
        "content": _parts(result.content),
        "is_error": result.is_error,
        "failure": result.failure,
        "reward": result.reward,
        "stop": result.stop,
        "metrics": dict(result.metrics),
    }


def _has_image(content: Content) -> bool:
    return not isinstance(content, str) and any(part["type"] == "image" for part in content)


def _parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [dict(part) if part["type"] == "text" else _image_part(part["image"]) for part in content]


def _image_part(image: Any) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return {"type": "image", "data": outcomes.to_base64(buffer.getvalue()), "mimeType": "image/png"}


def _read_image(index: int, text: str, budget: ImageBudget) -> Any:
    """Decode an image. Raises `HTTPException` 422."""
    try:
        return budget.load(decode_base64(text, "The image"))
    except ValueError as error:  # a UserError is one
        refuse(f"images.{index}", str(error))
