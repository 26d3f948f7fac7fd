"""Settings of rollouts: rendering, limits, sampling, the engine, and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, with_config

from agentloop.engines import ENGINES
from agentloop.registry.options import Config, ConfigOptions, ConfigPath, not_bool
from agentloop.rendering.builtin import checked, template_text
from agentloop.rendering.formats import FORMATS
from agentloop.rendering.inline import InlineFormat
from agentloop.types.limits import Limits


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class InlineConfig(InlineFormat):
    """`InlineFormat` that rejects unknown keys."""


class RenderingConfig(Config):
    """Rendering of messages as tokens, beyond what the model's files define."""

    tool_format: Annotated[str, AfterValidator(FORMATS.check)] | None = None
    """Tool-call format of the model, a name of `agentloop.rendering.formats`; None: the format that its chat template
    shows."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as {enable_thinking: false}."""
    chat_template: Annotated[ConfigPath, AfterValidator(checked)] | None = None
    """Chat template that replaces the model's own: a file, or one that comes with agentloop (`builtin:hermes`,
    `builtin:llama3`, `builtin:qwen3`)."""
    calls_in_thinking: Literal["feedback", "execute"] = "feedback"
    """Handling of a call inside thinking that is never closed. feedback: do not run it, and tell the model to close its
    thinking. execute: run it, as most parsers of vLLM do."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Smallest number of pixels to which an image is scaled; None: the default of the model's processor."""
    max_pixels: int | None = Field(default=None, gt=0)
    """Largest number of pixels to which an image is scaled; None: the default of the model's processor."""
    inline: InlineConfig | None = None
    """Write calls as tags in one long turn, as in the papers of ReTool, Search-R1 and SkyRL-SQL. The prompt then has to
    describe the tools."""

    @property
    def template_text(self) -> str | None:
        """Text of `chat_template`; None if it is not set. Raises `UserError` if it cannot be read."""
        return None if self.chat_template is None else template_text(self.chat_template)


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class LimitsConfig(Limits):
    """Bounds of an episode: its turns, tokens, seconds and calls."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        return not_bool(value)


class SamplingConfig(Config):
    """Sampling of tokens in training episodes.

    The learner normalises over the whole vocabulary, so top_p and top_k need learner.corrections
    (docs/concepts/algorithms.md).
    """

    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the softmax; 0 always takes the most likely token, so the model does not explore."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Total probability of the candidate tokens; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Number of candidate tokens; 0 keeps all."""
    stop_strings: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end a turn, including the token that completes them. Tool calls need none."""


class EngineConfig(Config):
    """The engine that samples tokens."""

    name: Annotated[str, AfterValidator(ENGINES.check)] = "hf"
    """`hf`, `vllm`, `sglang` or `scripted`; `openai` and `anthropic` call a service, for `agentloop rollout` only."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, except the model."""
    max_concurrency: int = Field(default=256, ge=1)
    """Largest number of episodes in flight on each worker."""

    @property
    def reports_cut(self) -> bool:
        """Whether the engine renormalises log-probabilities over the tokens that top_p and top_k leave."""
        return ENGINES.get(self.name).reports_cut


class EvalConfig(Config):
    """Evaluation on the held-out tasks."""

    every: int = Field(default=0, ge=0)
    """Number of steps between evaluations; 0 never evaluates. The first is before step 1, the last after the last
    step."""
    samples: int = Field(default=1, ge=1)
    """Number of episodes per task."""
    temperature: float = Field(default=0.0, ge=0)
    """0 always takes the most likely token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """None: the value of `sampling`."""
