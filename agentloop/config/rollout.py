"""Settings of rollouts: limits, sampling, the engine, and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, with_config

from agentloop.engines import ENGINES
from agentloop.registry.options import Config, ConfigOptions
from agentloop.types.limits import Limits


@with_config(ConfigDict(extra="forbid"))
@dataclass(slots=True, frozen=True, kw_only=True)
class LimitsConfig(Limits):
    """`Limits`, strict about its keys."""


class SamplingConfig(Config):
    """Sampling of tokens in training episodes.

    The learner scores tokens among all tokens: top_p and top_k need learner.corrections (docs/concepts/algorithms.md).
    """

    temperature: float = Field(default=1.0, ge=0)
    """Temperature of the softmax; at 0 the most likely token is always taken, and nothing is explored."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Total probability of the candidate tokens; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Number of candidate tokens; 0 keeps all."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a turn, with the token that completes them. Tool calls need none."""


class EngineConfig(Config):
    """The engine that samples tokens."""

    name: Annotated[str, AfterValidator(ENGINES.check)] = "hf"
    """`hf`, `vllm`, `sglang` or `scripted`; `openai` and `anthropic` ask a service, for `agentloop rollout` only."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, except the model."""
    max_concurrency: int = Field(default=256, ge=1)
    """Largest number of episodes in flight."""

    @property
    def reports_cut(self) -> bool:
        """Whether the log-probabilities of the engine are those that top_p and top_k leave."""
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
