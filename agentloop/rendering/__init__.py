"""Renderers: convert messages to token ids and back, for one model family.

The rollout loop calls them before and after the engine. Loading a tokenizer imports transformers.
"""

from agentloop.rendering.base import Continuation, Renderer, ToolSchemas
from agentloop.rendering.factory import renderer_for

__all__ = ["Continuation", "Renderer", "ToolSchemas", "renderer_for"]
