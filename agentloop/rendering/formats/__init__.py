"""Formats in which model families write tool calls; renderers select one by name or from the chat template."""

from __future__ import annotations

from agentloop.registry.registry import Registry
from agentloop.rendering.formats.base import CallFormat
from agentloop.rendering.formats.gemma import GEMMA4
from agentloop.rendering.formats.harmony import HARMONY
from agentloop.rendering.formats.json_calls import HERMES, NEMOTRON, PHI
from agentloop.rendering.formats.llama import LLAMA3
from agentloop.rendering.formats.marked import DEEPSEEK_R1, DEEPSEEK_V3_1, KIMI
from agentloop.rendering.formats.mistral import MISTRAL
from agentloop.rendering.formats.pythonic import LFM2
from agentloop.rendering.formats.raw_pythonic import LFM2_5
from agentloop.rendering.formats.tagged import DEEPSEEK_V3_2, GLM, MINIMAX, QWEN3_CODER, SEED

_ALL = (
    HARMONY,
    GEMMA4,
    KIMI,
    DEEPSEEK_V3_2,
    DEEPSEEK_R1,
    DEEPSEEK_V3_1,
    GLM,
    MINIMAX,
    SEED,
    LFM2_5,
    LFM2,
    MISTRAL,
    NEMOTRON,
    PHI,
    QWEN3_CODER,
    HERMES,
    LLAMA3,
)
FORMATS: Registry[CallFormat] = Registry(
    "tool-call format", "rendering.tool_format", {each.name: each for each in _ALL}, own="none"
)
"""Templates are tried in this order, because the signs of one format may be part of another's."""
NAMES = tuple(sorted(FORMATS))


def call_format(name: str) -> CallFormat:
    """Return the call format with this name. Raises `UserError` for unknown names."""
    return FORMATS.get(name)


def detect_format(template: str) -> CallFormat | None:
    """Return the call format that a chat template shows; None if it shows no known format."""
    return next((item for item in _ALL if all(sign in template for sign in item.signs)), None)
