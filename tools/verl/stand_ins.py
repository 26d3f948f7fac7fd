"""The names that a tool written for verl imports from it, with verl's meaning."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    """Keeps what it does not know: verl's own schema drops `items`, bounds, defaults and nested properties."""

    model_config = ConfigDict(extra="allow")


class OpenAIFunctionSchema(_Open):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class OpenAIFunctionToolSchema(_Open):
    """A tool in OpenAI's format."""

    type: str = "function"
    function: OpenAIFunctionSchema


class ToolResponse(BaseModel):
    """What a call gives back."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """verl's base class: `create`, `execute` and `release` of one instance."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """For classes that have no schema in the YAML file."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        raise NotImplementedError

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the instance."""
