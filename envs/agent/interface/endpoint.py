"""An agent gets the `Endpoint` of its model and returns an `AgentResult`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class Endpoint:
    """The address of an agent's model, valid for one episode."""

    base_url: str
    """Address that ends in /v1, for OpenAI's clients."""
    api_key: str
    model: str
    """Name of the model. The gateway also accepts any other name."""

    @property
    def root_url(self) -> str:
        """The address without /v1, for Anthropic's clients."""
        return self.base_url.removesuffix("/v1")


@dataclass(slots=True, frozen=True)
class AgentResult:
    """The outcome of an agent."""

    answer: str | None = None
    """Answer of the agent; None means the last text of the model."""
    reward: float | None = None
    """Reward of the whole episode; that of `env.reward` is added."""


Agent = Callable[[Mapping[str, Any], Endpoint], Awaitable[Any] | Any]
"""(task, endpoint) -> an answer (str), a reward (float), an `AgentResult`, or None."""


def as_result(found: object) -> AgentResult:
    """Convert the return value of an agent to an `AgentResult`. Raises `TypeError` and `ValueError`."""
    if found is None or isinstance(found, AgentResult):
        result = found or AgentResult()
    elif isinstance(found, str):
        result = AgentResult(answer=found)
    elif isinstance(found, bool | int | float):
        result = AgentResult(reward=float(found))
    else:
        raise TypeError(
            f"the agent returned {type(found).__name__}; it may return an answer (str), a reward (float), an "
            "AgentResult, or None"
        )
    if result.reward is not None and not math.isfinite(result.reward):
        raise ValueError(f"the agent's reward is {result.reward}, which is not finite")
    return result
