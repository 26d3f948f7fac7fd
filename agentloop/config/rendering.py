"""`RenderingConfig`: the rendering of messages as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, with_config

from agentloop.registry.options import Config, ConfigPath
from agentloop.rendering.builtin import checked
from agentloop.rendering.formats import FORMATS
from agentloop.rendering.inline import InlineFormat


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class InlineConfig(InlineFormat):
    """`InlineFormat`, strict about its keys."""


class RenderingConfig(Config):
    """Rendering of messages as tokens, in addition to the model's own files."""

    tool_format: Annotated[str, AfterValidator(FORMATS.check)] | None = None
    """Tool-call format of the model, a name of `agentloop.rendering.formats`; None: the format that its chat template
    shows."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as {enable_thinking: false}."""
    chat_template: Annotated[ConfigPath, AfterValidator(checked)] | None = None
    """Chat template that replaces the model's own: a file, or one that comes with agentloop (`builtin:hermes`,
    `builtin:llama3`, `builtin:qwen3`)."""
    calls_in_thinking: Literal["feedback", "execute"] = "feedback"
    """A call in thinking that is never closed: not run, with feedback that says to close it, or run. Parsers
    of vLLM for most families run it."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Images are scaled to at least min_pixels and at most max_pixels; None: as the model's processor says."""
    max_pixels: int | None = Field(default=None, gt=0)
    """Largest number of pixels of an image, as for min_pixels."""
    inline: InlineConfig | None = None
    """Write calls as tags in one long turn, as in the papers of ReTool, Search-R1 and SkyRL-SQL. The prompt then has to
    describe the tools."""
