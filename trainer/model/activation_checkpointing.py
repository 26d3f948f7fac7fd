"""Layers that keep next to nothing for the backward: the input of each, or of every few.

The backward of a layer computes it again: attention for the whole row, the MLP a part of the row at a time (as ALST
does, arXiv 2506.13996), so that what an MLP makes of a row is never there whole. No part is computed more than once for
it. Where only every few layers keep their input, those of the layers between are computed from it when the last of them
has its backward, and wait there for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.trainer.model.compiling import compile_whole

_TILE = 16384
"""Most tokens that go through an MLP at a time: enough for its matrix products to run at full speed."""
_ROWS = 128
"""Tiles are a multiple of this, the tile of a matrix product."""

_KNOWN = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen2VLDecoderLayer",
    "Qwen2_5_VLDecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3VLTextDecoderLayer",
}
"""Layers of transformers that are `_attend`, then `_feed`. Others of the same parts scale or order them differently."""


def can_recompute(layers: Sequence[nn.Module]) -> bool:
    """All of them are of a kind that can be computed in two halves."""
    return all(type(layer).__name__ in _KNOWN for layer in layers)


def prepare(layers: Sequence[nn.Module], every: int, *, compiled: bool) -> None:
    """Replace the forward of each layer, in place: the input of every `every`-th one is kept, 1: of all.

    Layers between must have their parameters when the backward of a later one runs: with FSDP, `gather_once`.
    """
    recomputed = _Recomputed(every, compiled=compiled)
    for layer in layers:
        layer.forward = partial(recomputed, layer)  # type: ignore[method-assign]


def _attend(layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
    attended: Tensor = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **kwargs)[0]
    return hidden + attended


def _feed(layer: Any, hidden: Tensor) -> Tensor:
    fed: Tensor = layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden + fed


class _Recomputed:
    """The forward of all layers, [1, num_tokens, hidden] to the same."""

    def __init__(self, every: int, *, compiled: bool) -> None:
        self._every = every
        self._attend, self._feed = _attend, _feed
        if compiled:
            self._attend, self._feed = compile_whole(_attend), compile_whole(_feed)
        self._open: _Segment | None = None

    def __call__(self, layer: nn.Module, hidden: Tensor, **kwargs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return self.run(layer, kwargs, hidden)
        if not hidden.requires_grad:  # frozen embeddings: the layers have gradients all the same
            hidden = hidden.detach().requires_grad_()
        segment = self._open
        if segment is None or not segment.goes_on_with(hidden):
            segment = _Segment(hidden)
        place = segment.add(partial(self.run, layer, kwargs))
        out: Tensor = _Function.apply(hidden, segment, place, partial(self.differentiate, layer, kwargs))
        segment.end = out.detach(), out._version
        self._open = segment if place + 1 < self._every else None
        return out

    @torch.no_grad()
    def run(self, layer: nn.Module, kwargs: dict[str, Any], hidden: Tensor) -> Tensor:
        """The layer, and nothing that a backward could use."""
        out = self._attend(layer, hidden, kwargs)
        for rows in _tiles(out.shape[1]):
            out[:, rows] = self._feed(layer, out[:, rows])
        return out

    def differentiate(self, layer: nn.Module, kwargs: dict[str, Any], hidden: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the input from that of the output; those of parameters are added to theirs."""
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad():
            attended = self._attend(layer, hidden, kwargs)
        values = attended.detach()
        for rows in _tiles(values.shape[1]):
            part = values[:, rows].detach().requires_grad_()
            with torch.enable_grad():
                fed = self._feed(layer, part)
            torch.autograd.backward(fed, grad[:, rows])
            assert part.grad is not None
            values[:, rows] = part.grad  # they are not needed any more: the gradient takes their place
        torch.autograd.backward(attended, values)
        assert hidden.grad is not None
        return hidden.grad


class _Segment:
    """Layers of one forward that share a kept input."""

    def __init__(self, hidden: Tensor) -> None:
        self.end: tuple[Tensor, int] | None = None
        """What the last layer returned, and its version, until the backward: nothing else can then be where it is."""
        self._runs: list[Callable[[Tensor], Tensor]] = []
        self._inputs = [hidden.detach()]
        """Of the first layers."""
        self._version = hidden._version

    def goes_on_with(self, hidden: Tensor) -> bool:
        """This is what the last layer returned, and nobody changed it."""
        if self.end is None:
            return False
        end, version = self.end
        return (end.data_ptr(), end.shape, version) == (hidden.data_ptr(), hidden.shape, hidden._version)

    def add(self, run: Callable[[Tensor], Tensor]) -> int:
        """The place of a layer."""
        self._runs.append(run)
        return len(self._runs) - 1

    def take_input(self, place: int) -> Tensor:
        """Of a layer; those of the layers before it are there then, its own is not any more."""
        self.end = None
        assert self._inputs[0]._version == self._version, "the input of a layer was changed in place after it"
        while len(self._inputs) <= place:
            self._inputs.append(self._runs[len(self._inputs) - 1](self._inputs[-1]))
        assert len(self._inputs) == place + 1, "backwards come in the order of layers, the last one first, once"
        return self._inputs.pop()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, segment: _Segment, place: int, differentiate: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        ctx.layer = segment, place, differentiate
        return segment._runs[place](hidden.detach())  # as when it is computed again: one compilation does for both

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        segment, place, differentiate = ctx.layer
        return differentiate(segment.take_input(place), grad), None, None, None


def _tiles(num_tokens: int) -> Iterator[slice]:
    """Slices of about equal size that cover [0, num_tokens)."""
    count = -(-num_tokens // _TILE)
    size = -(-num_tokens // max(count, 1) // _ROWS) * _ROWS
    for start in range(0, num_tokens, size):
        yield slice(start, min(start + size, num_tokens))
