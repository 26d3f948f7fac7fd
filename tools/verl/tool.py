"""`VerlTool`: wraps an object with verl's `create`, `execute` and `release` as a `Tool`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentloop.process.threads import DECODING
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.schema import SchemaArguments
from agentloop.types.messages import Content, ImagePart, TextPart
from agentloop.vision.row_image import has_row_image, with_loaded


@dataclass(slots=True)
class AgentData:
    """The fields of verl's `agent_data` that tools use in `execute`."""

    request_id: str
    """Id of the trajectory."""
    tools_kwargs: Mapping[str, Any]
    """Arguments of tools for this row, with decoded images: column `tools_kwargs`, or its `extra_info.tools_kwargs`."""
    image_data: list[Any] = field(default_factory=list)
    """Images shown so far."""
    messages: list[Any] = field(default_factory=list)
    """The conversation so far."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Measurements of the tools. They are not reported: `execute` returns those of the call."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """State that the tools of the trajectory share. The reward function finds it in `extra_info`."""


@dataclass(slots=True)
class _Instance:
    id: str | None
    data: AgentData


class VerlTool(Tool):
    """One tool of verl.

    With `per_call` each call has an instance, as in verl since 0.5; otherwise each trajectory has one.
    """

    def __init__(self, inner: Any, schema: Mapping[str, Any], *, timeout: float, per_call: bool = False) -> None:
        self.name = str(schema["name"])
        self.description = str(schema.get("description") or "")
        self.arguments = SchemaArguments(schema.get("parameters") or {}, what=f"the tool {self.name!r}")
        self.timeout = timeout
        self._inner = inner
        self._per_call = per_call

    async def open(self, ctx: ToolContext) -> _Instance:
        # verl's datasets have them under extra_info, and its loader gives them to the tools.
        all_kwargs = ctx.task.get("tools_kwargs") or (ctx.task.get("extra_info") or {}).get("tools_kwargs") or {}
        if has_row_image(all_kwargs):
            all_kwargs = await DECODING.run(with_loaded, all_kwargs)
        data = AgentData(ctx.trajectory_id, all_kwargs, extra_fields=ctx.shared_state)
        return _Instance(None if self._per_call else await self._create(data), data)

    async def close(self, ctx: ToolContext) -> None:
        instance: _Instance = ctx.state
        if instance.id is not None:
            await self._inner.release(instance.id)

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        instance: _Instance = ctx.state
        instance.data.image_data = list(ctx.images)
        instance.data.messages = list(ctx.messages)
        if instance.id is not None:
            return await self._execute(instance.id, arguments, instance.data)
        created = await self._create(instance.data)
        try:
            return await self._execute(created, arguments, instance.data)
        finally:
            await self._inner.release(created)

    async def _create(self, data: AgentData) -> str:
        given = (data.tools_kwargs.get(self.name) or {}).get("create_kwargs") or {}
        # Tools for early versions declare each argument; later ones read `create_kwargs`.
        named = inspect.signature(self._inner.create).parameters
        by_name = {key: value for key, value in given.items() if key in named}
        created = await self._inner.create(create_kwargs=given, **by_name)
        return created[0] if isinstance(created, tuple) else created

    async def _execute(self, instance_id: str, arguments: dict[str, Any], data: AgentData) -> ToolResult:
        response, reward, metrics = await self._inner.execute(instance_id, arguments, agent_data=data)
        return ToolResult(
            response if isinstance(response, str) else _content(self.name, response),
            reward=float(reward or 0.0),
            metrics={key: float(value) for key, value in (metrics or {}).items() if isinstance(value, int | float)},
        )


def _content(name: str, response: Any) -> Content:
    """Return the images and text of a `ToolResponse` in verl's order."""
    if getattr(response, "video", None):
        raise TypeError(f"the tool {name!r} returned a video, which is not supported")
    text = response.text or ""
    images = [ImagePart(type="image", image=image) for image in response.image or () if image is not None]
    if not images:
        return text
    return [*images, *([TextPart(type="text", text=text)] if text else [])]
