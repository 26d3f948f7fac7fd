"""How model families write calls, and which of them a chat template shows."""

from __future__ import annotations

from agentloop.errors import UserError, nearest
from agentloop.rendering.formats.deepseek import DEEPSEEK_R1, DEEPSEEK_V3_1
from agentloop.rendering.formats.gemma import GEMMA4
from agentloop.rendering.formats.harmony import HARMONY
from agentloop.rendering.formats.json_calls import HERMES, NEMOTRON, PHI
from agentloop.rendering.formats.kimi import KIMI
from agentloop.rendering.formats.llama import LLAMA3
from agentloop.rendering.formats.mistral import MISTRAL
from agentloop.rendering.formats.pythonic import LFM2
from agentloop.rendering.formats.tagged import DEEPSEEK_V3_2, GLM, MINIMAX, QWEN3_CODER, SEED
from agentloop.rendering.parsing import CallFormat

_FORMATS = (
    HARMONY,
    GEMMA4,
    KIMI,
    DEEPSEEK_V3_2,
    DEEPSEEK_R1,
    DEEPSEEK_V3_1,
    GLM,
    MINIMAX,
    SEED,
    LFM2,
    MISTRAL,
    NEMOTRON,
    PHI,
    QWEN3_CODER,
    HERMES,
    LLAMA3,
)
"""In the order in which a template is tried: the signs of some are part of those of others."""
NAMES = tuple(sorted(item.name for item in _FORMATS))


def call_format(name: str) -> CallFormat:
    """The call format of that name. Raises `UserError`."""
    for item in _FORMATS:
        if item.name == name:
            return item
    raise UserError(f"There is no tool-call format {name!r}.{nearest(name, NAMES)} Known: {', '.join(NAMES)}.")


def detect_format(template: str) -> CallFormat | None:
    """The format that a chat template shows its model; None where it shows none that is known."""
    return next((item for item in _FORMATS if all(sign in template for sign in item.signs)), None)
