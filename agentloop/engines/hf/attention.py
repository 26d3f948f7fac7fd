"""Attention of the `hf` engine: one packed forward pass of decode steps and prompt chunks over the slot cache.

The model's own code runs on all tokens of a step, packed as one row [1, tokens]. Only attention distinguishes the
slots: it calls this module through transformers' `AttentionInterface`, like transformers' own paged attention, so every
model with this interface works.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

from agentloop.engines.hf.cache import SlotCache

NAME = "agentloop_slots"
_SUPPORTED_KWARGS = {"dropout", "scaling", "sliding_window", "is_causal", "position_ids", "use_cache", "slot_step"}
_SUPPORTED_KWARGS |= {"output_router_logits"}  # models with experts pass it; attention ignores it


@dataclass
class DecodeRows:
    """Decode steps: one new token for each slot in `rows`. They come first in the packed row."""

    cache: SlotCache
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]

    def __post_init__(self) -> None:
        device = self.cache.kv.device
        self.count = len(self.rows)
        self.longest = int(self.positions.max()) + 1
        self.first, stop = int(self.rows[0]), int(self.rows[-1]) + 1
        self.span = stop - self.first
        self.dense = self.span == self.count
        # A view of a range of slots needs no copy. It pays off if at least half of the slots in it are needed.
        self.view = self.span <= 2 * self.count
        self.index = torch.from_numpy(self.rows - (self.first if self.view else 0)).to(device)
        positions = self.positions
        if self.view and not self.dense:
            positions = np.zeros(self.span, np.int64)
            positions[self.rows - self.first] = self.positions
        self.key_positions = torch.from_numpy(positions).to(device)[:, None]
        self._masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        if window not in self._masks:
            self._masks[window] = _mask(self.key_positions, self.longest, window, dtype)
        return self._masks[window]

    def attend(
        self, q: torch.Tensor, layer: int, scale: float, window: int | None, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend from q [heads, count, dim]; return [count, heads, dim]."""
        keys, values = self.cache.kv[layer, :, :, :, : self.longest]
        kv_heads, dim = keys.shape[1], keys.shape[3]
        q = q.transpose(0, 1).reshape(self.count, kv_heads, -1, dim)
        if self.view:
            keys, values = (part[self.first : self.first + self.span] for part in (keys, values))
            if not self.dense:
                q = q.new_zeros(self.span, *q.shape[1:]).index_copy_(0, self.index, q)
        else:
            keys, values = (part.index_select(0, self.index) for part in (keys, values))
        mask = self.mask(window, q.dtype)
        if sinks is not None:
            keys, values, mask = _with_sinks(keys, values, mask, sinks.view(kv_heads, -1))
        out = sdpa(q, keys, values, attn_mask=mask, scale=scale)
        if self.view and not self.dense:
            out = out.index_select(0, self.index)
        return out.reshape(self.count, -1, dim)


@dataclass
class PromptChunks:
    """Prompt chunks: `counts[i]` new tokens in `rows[i]` from position `starts[i]`, padded to the longest chunk."""

    cache: SlotCache
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    offset: int
    """Index of the first of these tokens in the packed row."""

    def __post_init__(self) -> None:
        device = self.cache.kv.device
        width = int(self.counts.max())
        steps = np.arange(width)
        self.longest = int((self.starts + self.counts).max())
        real = steps[None] < self.counts[:, None]
        packed = np.zeros(real.shape, np.int64)
        packed[real] = self.offset + np.arange(int(self.counts.sum()))
        self.index = torch.from_numpy(self.rows).to(device)
        self.packed = torch.from_numpy(packed).to(device)
        self.real = torch.from_numpy(np.flatnonzero(real)).to(device)
        self.key_positions = torch.from_numpy(self.starts[:, None] + steps[None]).to(device)
        self._masks: dict[int | None, torch.Tensor] = {}

    def mask(self, window: int | None, dtype: torch.dtype, groups: int) -> torch.Tensor:
        if window not in self._masks:
            # Query heads that share a key head become additional queries of that head, so keys need not be repeated.
            self._masks[window] = _mask(self.key_positions, self.longest, window, dtype).repeat(1, 1, groups, 1)
        return self._masks[window]

    def attend(
        self, q: torch.Tensor, layer: int, scale: float, window: int | None, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend from q [heads, tokens of the step, dim]; return [tokens of the chunks, heads, dim]."""
        keys, values = (part[:, :, : self.longest].index_select(0, self.index) for part in self.cache.kv[layer])
        (heads, _, dim), kv_heads = q.shape, keys.shape[1]
        chunks, width = self.packed.shape
        padded = q[:, self.packed].transpose(0, 1).reshape(chunks, kv_heads, heads // kv_heads * width, dim)
        mask = self.mask(window, q.dtype, heads // kv_heads)
        if sinks is not None:
            of_queries = sinks.view(kv_heads, -1).repeat_interleave(width, dim=1)
            keys, values, mask = _with_sinks(keys, values, mask, of_queries)
        out = sdpa(padded, keys, values, attn_mask=mask, scale=scale)
        out = out.reshape(chunks, heads, width, dim).transpose(1, 2).reshape(chunks * width, heads, dim)
        return out.index_select(0, self.real)


def _mask(positions: torch.Tensor, length: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return an additive mask [rows, 1, queries, length]; position p attends to the last `window` keys up to p."""
    keys = torch.arange(length, device=positions.device)
    hidden = keys > positions[..., None]
    if window is not None:
        hidden |= keys <= positions[..., None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]


def _with_sinks(
    keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add one zero key with the logit `sinks` [kv heads, queries] and a zero value: the attention sinks of gpt-oss."""
    rows, _, _, length = mask.shape
    whole = mask.expand(rows, *sinks.shape, length)
    last = sinks.to(mask.dtype)[None, :, :, None].expand(rows, -1, -1, 1)
    return pad(keys, (0, 0, 0, 1)), pad(values, (0, 0, 0, 1)), torch.cat([whole, last], dim=-1)


@dataclass
class SlotStep:
    """All tokens of one forward pass: `decode` first, then each item of `prompts`."""

    cache: SlotCache
    rows: NDArray[np.int64]
    """Slot of each token, [tokens]."""
    positions: NDArray[np.int64]
    """Position of each token in its slot, [tokens]."""
    decode: DecodeRows | None
    prompts: list[PromptChunks] = field(default_factory=list)

    @cached_property
    def row_index(self) -> torch.Tensor:
        return torch.from_numpy(self.rows).to(self.cache.kv.device)

    @cached_property
    def position_index(self) -> torch.Tensor:
        return torch.from_numpy(self.positions).to(self.cache.kv.device)


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    slot_step: SlotStep,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention over slots; an implementation of transformers' `AttentionInterface`.

    `query` is [1, heads, tokens, dim]; `key` and `value` are [1, kv heads, tokens, dim].
    """
    for name in kwargs.keys() - _SUPPORTED_KWARGS:
        if kwargs[name] is not None:
            raise NotImplementedError(f"the hf engine does not support attention with {name}={kwargs[name]!r}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    cache = slot_step.cache
    rows, positions = slot_step.row_index, slot_step.position_index
    cache.kv[layer, 0][rows, :, positions] = key[0].transpose(0, 1)
    cache.kv[layer, 1][rows, :, positions] = value[0].transpose(0, 1)
    parts = []
    if slot_step.decode is not None:
        decoded = query[0, :, : slot_step.decode.count]
        parts.append(slot_step.decode.attend(decoded, layer, scaling, sliding_window, s_aux))
    parts += [chunk.attend(query[0], layer, scaling, sliding_window, s_aux) for chunk in slot_step.prompts]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None
