"""KV cache of the `hf` engine: one slot holds the tokens, keys and values of one trajectory between its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from agentloop.engines.hf.routing import SlotRouting
    from agentloop.engines.hf.states import SlotStates

GROWTH = 256
"""Number of tokens by which the length of slots grows."""


class SlotCache:
    """Cache of `slots` sequences of up to `max_len` tokens. Its memory grows with the slots and tokens in use.

    `kv` has the shape [layers, 2, slots, kv heads, length, head dim]; `tokens` and `logprobs` are [slots, length].
    `kv_len[s]` tokens of slot s have keys and values; `tok_len[s]` tokens are known.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
        states: SlotStates | None = None,
        routing: SlotRouting | None = None,
    ) -> None:
        self.slots = slots
        self.states = states
        """States of recurrent layers; None for models without such layers."""
        self.routing = routing
        """Routed experts of the tokens, if the engine returns them."""
        self.max_len = max_len
        self.length = 0
        self._rows = 0
        self._shape = (layers, 2, kv_heads, head_dim)
        self._dtype = dtype
        self._device = device
        self.kv = self._empty(0, 0)
        self.tokens: NDArray[np.int32] = np.zeros((slots, 0), np.int32)
        self.logprobs: NDArray[np.float32] = np.zeros((slots, 0), np.float32)
        self.kv_len: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.tok_len: NDArray[np.int64] = np.zeros(slots, np.int64)

    def _empty(self, rows: int, length: int) -> torch.Tensor:
        layers, two, heads, dim = self._shape
        return torch.zeros((layers, two, rows, heads, length, dim), dtype=self._dtype, device=self._device)

    def reserve(self, row: int, length: int) -> None:
        """Grow the cache until slot `row` exists and has room for `length` tokens."""
        rows, longest = self._rows, self.length
        if row >= rows:
            rows = min(self.slots, max(row + 1, 2 * rows, 8))
        if length > longest:
            longest = min(-(-max(length, longest * 3 // 2) // GROWTH) * GROWTH, self.max_len)
        if (rows, longest) == (self._rows, self.length):
            return
        kv = self._empty(rows, longest)  # before any change, since memory may not suffice
        kv[:, :, : self._rows, :, : self.length] = self.kv
        if longest > self.length:
            tokens = np.zeros((self.slots, longest), np.int32)
            logprobs = np.zeros((self.slots, longest), np.float32)
            tokens[:, : self.length], logprobs[:, : self.length] = self.tokens, self.logprobs
            self.tokens, self.logprobs = tokens, logprobs
        self.kv, self._rows, self.length = kv, rows, longest

    def drop(self) -> None:
        """Free the memory of all keys and values, but keep the tokens."""
        self.kv, self._rows = self._empty(0, self.length), 0
        self.kv_len[:] = 0
        if self.states is not None:
            self.states.drop()

    def common_prefix(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the number of leading tokens that each slot shares with `tokens`, int64 [slots]."""
        width = min(len(tokens), self.length)
        if width == 0:
            return np.zeros(self.slots, np.int64)
        differs = self.tokens[:, :width] != tokens[:width]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
        return np.minimum(first, self.tok_len)

    def ready_prefix(self, common: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the first `common` tokens of each slot can be reused, int64 [slots].

        A recurrent state belongs to all tokens of a slot, so it can be reused only for the whole slot.
        """
        if self.states is None:
            return np.minimum(common, self.kv_len)
        return np.where(common >= self.kv_len, self.kv_len, 0)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys, values and experts of the first `length` tokens, and the state, from slot `source` to `target`."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]
        if self.states is not None:
            self.states.copy(source, target)
        if self.routing is not None:
            self.routing.copy(source, target, length)

    @staticmethod
    def bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return layers * 2 * kv_heads * head_dim * dtype.itemsize
