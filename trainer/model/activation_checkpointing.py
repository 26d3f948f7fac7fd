"""Activation checkpointing: decoder layers keep only their input for the backward, or the input of every n-th layer.

The backward recomputes a layer: attention for the whole row, and the MLP for one tile of the row at a time, as ALST
does (arXiv 2506.13996). So the intermediate values of an MLP never exist for a whole row, and no part is recomputed
twice. If only every n-th layer keeps its input, the inputs of the layers after it are recomputed at once, when the
backward of the last one needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.trainer.model.compiling import compile_whole

TILE = 16384
"""Most tokens of a tile of the MLP: enough for matrix products at full speed."""
_MULTIPLE = 128
"""Tokens of a tile are a multiple of this, the tile of a matrix product."""

_KNOWN = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen2VLDecoderLayer",
    "Qwen2_5_VLDecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3VLTextDecoderLayer",
}
"""Layer classes of transformers that are `_attend`, then `_feed`; others scale or order these parts differently."""


def can_recompute(layers: Sequence[nn.Module]) -> bool:
    """Return whether all layers are of a kind that can be computed in two halves."""
    return all(type(layer).__name__ in _KNOWN for layer in layers)


def prepare(layers: Sequence[nn.Module], every: int, *, compiled: bool, tile: int = TILE) -> None:
    """Replace the forward of each layer in place; only every `every`-th layer keeps its input.

    The MLP is computed for at most `tile` tokens at a time. If `every` is above 1, earlier layers need their parameters
    during the backward of a later one: with FSDP this needs `gather_once`.
    """
    recomputed = _Recomputed(every, tile, compiled=compiled)
    for layer in layers:
        layer.forward = partial(recomputed, layer)  # type: ignore[method-assign]


def _attend(layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
    attended: Tensor = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **kwargs)[0]
    return hidden + attended


def _feed(layer: Any, hidden: Tensor) -> Tensor:
    fed: Tensor = layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden + fed


class _Recomputed:
    """The forward of all layers, from [1, num_tokens, hidden] to the same shape."""

    def __init__(self, every: int, tile: int, *, compiled: bool) -> None:
        self._every = every
        self._tile = tile
        self._attend, self._feed = _attend, _feed
        if compiled:
            self._attend, self._feed = compile_whole(_attend), compile_whole(_feed)
        self._open: _Segment | None = None

    def __call__(self, layer: nn.Module, hidden: Tensor, **kwargs: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return self.run(layer, kwargs, hidden)
        if not hidden.requires_grad:  # the embeddings are frozen, but the layers need gradients
            hidden = hidden.detach().requires_grad_()
        segment = self._open
        if segment is None or not segment.continues_with(hidden):
            segment = _Segment(hidden)
        place = segment.add(partial(self.run, layer, kwargs))
        out: Tensor = _Function.apply(hidden, segment, place, partial(self.differentiate, layer, kwargs))
        segment.end = out.detach(), out._version
        self._open = segment if place + 1 < self._every else None
        return out

    @torch.no_grad()
    def run(self, layer: nn.Module, kwargs: dict[str, Any], hidden: Tensor) -> Tensor:
        """Compute the layer without keeping anything for a backward."""
        out = self._attend(layer, hidden, kwargs)
        for rows in _tiles(out.shape[1], self._tile):
            out[:, rows] = self._feed(layer, out[:, rows])
        return out

    def differentiate(self, layer: nn.Module, kwargs: dict[str, Any], hidden: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the input from that of the output, and accumulate the gradients of parameters."""
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad():
            attended = self._attend(layer, hidden, kwargs)
        values = attended.detach()
        for rows in _tiles(values.shape[1], self._tile):
            part = values[:, rows].detach().requires_grad_()
            with torch.enable_grad():
                fed = self._feed(layer, part)
            torch.autograd.backward(fed, grad[:, rows])
            assert part.grad is not None
            values[:, rows] = part.grad  # the gradient replaces values that are no longer needed
        torch.autograd.backward(attended, values)
        assert hidden.grad is not None
        return hidden.grad


class _Segment:
    """Consecutive layers of one forward that share a kept input."""

    def __init__(self, hidden: Tensor) -> None:
        self.end: tuple[Tensor, int] | None = None
        """Output of the last layer and its version; kept until the backward, so its memory is not reused."""
        self._runs: list[Callable[[Tensor], Tensor]] = []
        self._inputs = [hidden.detach()]
        """Inputs of the first layers."""
        self._version = hidden._version

    def continues_with(self, hidden: Tensor) -> bool:
        """Return whether `hidden` is the unchanged output of the last layer."""
        if self.end is None:
            return False
        end, version = self.end
        return (end.data_ptr(), end.shape, version) == (hidden.data_ptr(), hidden.shape, hidden._version)

    def add(self, run: Callable[[Tensor], Tensor]) -> int:
        """Add a layer, and return its place."""
        self._runs.append(run)
        return len(self._runs) - 1

    def take_input(self, place: int) -> Tensor:
        """Remove and return the input of a layer, recomputing the inputs of all layers before it if needed."""
        self.end = None
        assert self._inputs[0]._version == self._version, "the input of a layer was changed in place after its forward"
        while len(self._inputs) <= place:
            self._inputs.append(self._runs[len(self._inputs) - 1](self._inputs[-1]))
        assert len(self._inputs) == place + 1, "each layer has one backward, the last layer first"
        return self._inputs.pop()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, segment: _Segment, place: int, differentiate: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        ctx.layer = segment, place, differentiate
        return segment._runs[place](hidden.detach())  # detached as in the recomputation, so both share one compilation

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        segment, place, differentiate = ctx.layer
        return differentiate(segment.take_input(place), grad), None, None, None


def _tiles(num_tokens: int, tile: int) -> Iterator[slice]:
    """Yield slices of about equal size, at most `tile`, that cover [0, num_tokens)."""
    count, multiple = -(-num_tokens // tile), min(_MULTIPLE, tile)
    size = -(-num_tokens // max(count, 1) // multiple) * multiple
    for start in range(0, num_tokens, size):
        yield slice(start, min(start + size, num_tokens))
