"""`RenderingConfig`: how messages become tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, with_config

from agentloop.registry.options import Config, ConfigPath
from agentloop.rendering.formats import FORMATS
from agentloop.rendering.inline import InlineFormat


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class InlineConfig(InlineFormat):
    """`InlineFormat`, strict about its keys."""


class RenderingConfig(Config):
    """How messages become tokens, where the model's own files do not say it."""

    tool_format: Annotated[str, AfterValidator(FORMATS.check)] | None = None
    """How the model writes calls, a name of `agentloop.rendering.formats`; by default what its chat template shows."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Handed to the chat template, such as {enable_thinking: false}."""
    chat_template: ConfigPath | None = None
    """A file that replaces the model's own template."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Pictures are scaled to at least so many pixels, and to at most max_pixels; by default as the model's processor
    says."""
    max_pixels: int | None = Field(default=None, gt=0)
    inline: InlineConfig | None = None
    """Calls are tags in one long turn, as in the papers of ReTool, Search-R1 and SkyRL-SQL; tools are not shown to the
    model then, the prompt has to."""
