"""Give the routers of a row the experts that the engine used, and count how the experts are loaded.

This is router replay (R3, arXiv 2510.11370). The experts of a row reach each decoder layer as an argument, so
checkpointing computes a layer again with the same experts. Each layer returns its choice as a further output, so
recomputing the layer counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.experts import routing
from agentloop.experts.routing import Choice


class Routing:
    """The routers of a model, by the number of their decoder layer."""

    def __init__(self, model: nn.Module) -> None:
        self.blocks = routing.prepare(model)
        """Number of the decoder layer -> its block of router and experts."""
        self.num_experts = max(map(routing.num_experts, self.blocks.values()), default=0)
        """Number of experts of a layer; 0 for a model without routers that can be observed."""
        self.layers = sorted(self.blocks)
        """Numbers of the decoder layers with experts."""
        self.load: Tensor | None = None
        """Choices of the last forward, int64 [number of `layers`, num_experts + 2]: how many tokens each expert
        computed, how many choices were replayed, and how many of these the router would not have made."""
        self.num_tokens: int | None = None
        """Tokens at the start of the row that count; None counts all."""

    def prepare(self, layers: list[nn.Module]) -> None:
        """Wrap the forward of the decoder layers, as `layers.prepare` has set it."""
        numbers = {block: number for number, block in self.blocks.items()}
        for layer in layers:
            # A layer inside of another one has no block of its own.
            number = next((numbers.pop(module) for module in layer.modules() if module in numbers), None)
            layer.forward = partial(self._forward, number, layer.forward)  # type: ignore[method-assign]
        assert not numbers, "every block of experts is in a decoder layer"

    def begin(self, device: torch.device, num_tokens: int | None) -> None:
        """Begin the forward of a row."""
        self.num_tokens = num_tokens
        if self.layers:
            self.load = torch.zeros(len(self.layers), self.num_experts + 2, dtype=torch.int64, device=device)

    def _forward(
        self, number: int | None, run: Callable[..., Any], *args: Any, routed: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if number is None:
            return run(*args, **kwargs)
        replayed = None if routed is None else routed[number]
        out, choice = run(*args, replayed=replayed, **kwargs)
        if choice is not None:
            self._count(self.layers.index(number), choice, replayed)
        return out

    @torch.no_grad()
    def _count(self, place: int, choice: Choice, replayed: Tensor | None) -> None:
        if self.load is None:
            return
        own, used = (experts[: self.num_tokens] for experts in choice)
        row = self.load[place]
        row.index_add_(0, used.flatten(), torch.ones_like(used).flatten())
        if replayed is not None:
            is_replayed = replayed[: self.num_tokens] >= 0
            is_own = (used[:, :, None] == own[:, None, :]).any(dim=2)
            row[-2] += is_replayed.sum()
            row[-1] += (is_replayed & ~is_own).sum()


def run_routed(layer: nn.Module, *args: Any, replayed: Tensor | None, **kwargs: Any) -> tuple[Any, Choice | None]:
    """Run a layer of transformers unchanged; return its output, and its choice of experts if it can be observed."""
    block = next(module for module in layer.modules() if hasattr(module, "replayed_experts"))
    routing.set_replayed(block, replayed)
    out = type(layer).forward(layer, *args, **kwargs)
    return out, routing.take_choice_if_seen(block)
