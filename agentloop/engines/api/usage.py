"""The tokens that a service bills, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from agentloop.registry.options import Config


@dataclass(slots=True, frozen=True)
class Usage:
    """Tokens of one request."""

    input: int
    """All tokens of the prompt."""
    output: int
    """Sampled tokens, hidden reasoning included."""
    cached_input: int = 0
    """Tokens of the prompt that were read from the service's cache."""
    cache_write: int = 0
    """Tokens of the prompt that were written to the service's cache, which has its own price."""


class Prices(Config):
    """Prices in dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)
    """None: the price of input."""
    cache_write: float | None = Field(default=None, ge=0)
    """None: the price of input."""

    def cost(self, usage: Usage) -> float:
        """Return the cost of a request in dollars."""
        cached = self.input if self.cached_input is None else self.cached_input
        written = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cached_input - usage.cache_write
        dollars = plain * self.input + usage.cached_input * cached + usage.cache_write * written
        return (dollars + usage.output * self.output) / 1e6
