"""Tools that were written for verl, as they are. `BaseTool`, `ToolResponse` and `OpenAIFunctionToolSchema` stand in for
verl's own where verl is not installed: import them from here in its place."""

from agentloop.tools.verl.stand_ins import BaseTool, OpenAIFunctionToolSchema, ToolResponse

__all__ = ["BaseTool", "OpenAIFunctionToolSchema", "ToolResponse"]
