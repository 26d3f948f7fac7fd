"""Engines: token ids in, sampled token ids out. Each loads its own heavy imports when it is created."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.errors import UserError, nearest

__all__ = ["Engine", "FinishReason", "Generation", "SamplingParams", "create", "known_engine"]

_ENGINES = {
    "hf": ("agentloop.engines.hf.engine", "HfEngine"),
    "scripted": ("agentloop.engines.testing.scripted", "ScriptedEngine"),
    "sglang": ("agentloop.engines.sglang.engine", "SglangEngine"),
    "vllm": ("agentloop.engines.vllm.engine", "VllmEngine"),
}


def known_engine(name: str) -> str:
    """`name`, where there is such an engine. Raises `UserError`."""
    if name not in _ENGINES:
        raise UserError(f"There is no engine {name!r}.{nearest(name, _ENGINES)} Known: {', '.join(sorted(_ENGINES))}.")
    return name


def create(name: str, **options: Any) -> Engine:
    """A new engine, not started. `options` are the keyword arguments of its class.

    Raises `UserError` for an unknown name or option.
    """
    module, attribute = _ENGINES[known_engine(name)]
    engine_class = getattr(import_module(module), attribute)
    try:
        return engine_class(**options)
    except TypeError as error:
        raise UserError(f"The engine {name!r} cannot be made with these options: {error}.") from error
