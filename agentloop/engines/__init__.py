"""Engines: token ids in, sampled token ids out. The rollout loop calls them; the learner sends them weights.

Engines in `api` take messages: their ids encode a transcript (`agentloop.rendering.transcript`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import check_call
from agentloop.registry.registry import Registry

__all__ = ["ENGINES", "Engine", "EngineKind", "FinishReason", "Generation", "SamplingParams", "create"]


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineKind:
    """An engine, and the facts that a run needs before it imports the engine."""

    target: str
    """Class as 'module:Class'."""
    runs_on_gpus: bool = False
    """Whether it has its own processes on GPUs: it is restarted if they die, and may sleep while the learner trains."""
    takes_images: bool = True
    bounds_pixels: bool = False
    """Whether it takes the option max_pixels."""
    takes_learner_dtype: bool = False
    """Whether its option dtype follows learner.compute_dtype; its own default depends on the device."""
    reports_cut: bool = True
    """Whether its log-probabilities are normalised over the tokens that top_p and top_k leave."""
    read_turn: str | None = None
    """Function that parses its turns, as 'module:function', for an engine that takes messages instead of token ids.
    Such an engine is for evaluation only: the learner needs token ids and their log-probabilities."""
    returns_routing: str | None = None
    """Option that makes it return routed experts (`Generation.routed`)."""
    takes_adapters: bool = False
    """Whether it takes the option adapters: the rank of adapters that are published without merging."""
    may_share_gpu: bool = False
    """Whether it takes the option shares_gpu: several engines can run on one GPU."""


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
            takes_adapters=True,
            returns_routing="enable_return_routed_experts",
        ),
    },
    own="none",
)


def create(name: str, **options: Any) -> Engine:
    """Create an engine without starting it; `options` are the keyword arguments of its class.

    Raises `UserError` for an unknown name or option.
    """
    engine_class = load_object(ENGINES.get(name).target, "engine")
    check_call(engine_class, options, of=f"engine {name!r}", call=f"{engine_class.__name__}(**options)")
    try:
        return engine_class(**options)
    except TypeError as error:
        # Names only: values may be secrets, such as headers of a service.
        raise UserError(f"The engine {name!r} does not take the options {', '.join(options)}: {error}.") from error
