"""Engines: token ids in, sampled token ids out. The rollout loop is above them; weights reach them from the learner.

Those of `api` take messages: their ids are a transcript (`agentloop.rendering.transcript`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.registry.registry import Registry

__all__ = ["ENGINES", "Engine", "EngineKind", "FinishReason", "Generation", "SamplingParams", "create"]


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineKind:
    """An engine and what a run must know about it before it is imported."""

    target: str
    """Its class as 'module:Class'."""
    runs_on_gpus: bool = False
    """It has processes of its own on GPUs: it is restarted when they die, and may sleep while the learner trains."""
    takes_images: bool = True
    bounds_pixels: bool = False
    """It takes the option max_pixels."""
    takes_learner_dtype: bool = False
    """Its option dtype follows learner.compute_dtype; its own default depends on the device."""
    reports_cut: bool = True
    """Its log-probabilities are those of the distribution that top_p and top_k leave, from which it samples."""
    read_turn: str | None = None
    """Function that parses its turns, as 'module:function', for an engine that takes messages instead of token ids. It
    evaluates only: the learner needs token ids and their log-probabilities."""
    returns_routing: str | None = None
    """Its option that lets turns have their routed experts (`Generation.routed`)."""
    may_share_gpu: bool = False
    """It takes the option shares_gpu: several of them run on one GPU."""


ENGINES: Registry[EngineKind] = Registry(
    "engine",
    "engine.name",
    {
        "anthropic": EngineKind(
            target="agentloop.engines.api.engine:AnthropicEngine", read_turn="agentloop.engines.api.anthropic:read_turn"
        ),
        "hf": EngineKind(
            target="agentloop.engines.hf.engine:HfEngine",
            takes_learner_dtype=True,
            returns_routing="routed_experts",
        ),
        "openai": EngineKind(
            target="agentloop.engines.api.engine:OpenAiEngine", read_turn="agentloop.engines.api.openai:read_turn"
        ),
        "scripted": EngineKind(target="agentloop.engines.testing.scripted:ScriptedEngine"),
        "sglang": EngineKind(
            target="agentloop.engines.sglang.engine:SglangEngine",
            runs_on_gpus=True,
            takes_images=False,
            reports_cut=False,
        ),
        "vllm": EngineKind(
            target="agentloop.engines.vllm.engine:VllmEngine",
            runs_on_gpus=True,
            bounds_pixels=True,
            may_share_gpu=True,
            returns_routing="enable_return_routed_experts",
        ),
    },
    own="none",
)


def create(name: str, **options: Any) -> Engine:
    """Make an engine, without starting it; `options` are the keyword arguments of its class.

    Raises `UserError` for an unknown name or option.
    """
    engine_class = load_object(ENGINES.get(name).target, "engine")
    try:
        return engine_class(**options)
    except TypeError as error:
        raise UserError(f"The engine {name!r} cannot be made with the options {sorted(options)}: {error}.") from error
