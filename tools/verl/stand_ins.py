"""Stand-ins for the classes that a tool written for verl imports from verl."""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    """Model that keeps unknown fields: verl's own drops `items`, bounds, defaults and nested properties."""

    model_config = ConfigDict(extra="allow")


class OpenAIFunctionSchema(_Open):
    """The `function` of a tool in OpenAI's format."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class OpenAIFunctionToolSchema(_Open):
    """Tool in OpenAI's format."""

    type: str = "function"
    function: OpenAIFunctionSchema


class ToolResponse(BaseModel):
    """Result of a call."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """Base class with verl's `create`, `execute` and `release` of an instance."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """Return the schema. Classes without one in the YAML file override this."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        raise NotImplementedError

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the instance."""
