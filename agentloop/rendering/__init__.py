"""Renderers: messages to token ids and back, for one model family. transformers is imported when a path is loaded."""

from agentloop.rendering.base import Continuation, Renderer, ToolSchemas
from agentloop.rendering.factory import renderer_for

__all__ = ["Continuation", "Renderer", "ToolSchemas", "renderer_for"]
