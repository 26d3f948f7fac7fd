"""Tools written for verl, used unchanged.

`BaseTool`, `ToolResponse` and `OpenAIFunctionToolSchema` stand in for verl's classes if verl is not installed: import
them from here instead.
"""

from agentloop.tools.verl.stand_ins import BaseTool, OpenAIFunctionToolSchema, ToolResponse

__all__ = ["BaseTool", "OpenAIFunctionToolSchema", "ToolResponse"]
