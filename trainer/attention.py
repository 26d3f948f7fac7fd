"""Causal attention over packed rows: several sequences in one row, without padding and without a mask.

A model loaded with `attn_implementation=PACKED` calls this from every layer. Where each sequence starts reaches it in
the keyword arguments that transformers passes through the forward of its models (`cu_seq_lens_q`, `max_length_q`),
which `PackedRow.kwargs` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agentloop.trainer.padded_layout import PaddedLayout

PACKED = "agentloop_packed"


def register() -> str:
    """Make the attention known to transformers and return its name for `attn_implementation`.

    Nothing is registered with the mask interface: transformers builds no mask for an implementation that has none.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
    return PACKED


def needs_padding(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the attention of a row must go through sdpa: FlashAttention takes half precision on CUDA only."""
    return device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16)


@dataclass(slots=True, frozen=True, eq=False)
class PackedRow:
    """Where the sequences of one row are."""

    lengths: tuple[int, ...]
    position_ids: Tensor
    """[1, num_tokens], int64; 0 where a sequence starts."""
    cu_seqlens: Tensor
    """[num_sequences + 1], int32: start of each sequence, then the end of the row."""
    padded: PaddedLayout | None
    """None where the kernel takes the row as it is."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu", *, padded: bool = True) -> PackedRow:
        """`padded` is for rows that no varlen kernel takes (see `needs_padding`)."""
        position_ids = np.concatenate([np.arange(length) for length in lengths])[None]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return cls(
            tuple(lengths),
            torch.from_numpy(position_ids).to(device, non_blocking=True),
            torch.from_numpy(cu_seqlens).to(device, non_blocking=True),
            PaddedLayout.of(lengths, device) if padded else None,
        )

    def kwargs(self) -> dict[str, Any]:
        """For the forward of a transformers model, next to `input_ids` of shape [1, num_tokens]."""
        return {
            "position_ids": self.position_ids,
            "cu_seq_lens_q": self.cu_seqlens,
            "cu_seq_lens_k": self.cu_seqlens,
            "max_length_q": max(self.lengths),
            "max_length_k": max(self.lengths),
            "packed_row": self,
            "use_cache": False,
        }


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    packed_row: PackedRow | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, n, d], key and value [1, kv_heads, n, d] to [1, n, heads, d].

    There is no dropout: what is trained must be the policy that sampled. Raises `ValueError` where the row comes with
    a mask or without its `packed_row`, or has a batch dimension.
    """
    if packed_row is None:
        raise ValueError(f"{PACKED} needs packed_row (see PackedRow.kwargs)")
    if attention_mask is not None or query.shape[0] != 1:
        raise ValueError(f"{PACKED} takes one packed row without a mask")
    if sliding_window is not None and sliding_window >= max(packed_row.lengths):
        sliding_window = None
    rows = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if packed_row.padded is None:
        out = _varlen(*rows, packed_row, scaling, sliding_window)
    else:
        out = _padded_sdpa(*rows, packed_row.padded, scaling, sliding_window)
    return out[None], None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, row: PackedRow, scale: float | None, window: int | None
) -> Tensor:
    """FlashAttention over the row, [n, heads, d]."""
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.11 takes fewer KV heads without being told, and has no argument for it; 2.12 wants to be told.
    grouped: dict[str, Any] = {"enable_gqa": True} if _VARLEN_HAS_GQA and query.shape[1] != key.shape[1] else {}
    left, longest = -1 if window is None else window - 1, max(row.lengths)
    out = varlen_attn(
        query,
        key,
        value,
        row.cu_seqlens,
        row.cu_seqlens,
        longest,
        longest,
        scale=scale,
        window_size=(left, 0),
        **grouped,
    )
    assert isinstance(out, Tensor)
    return out


def _varlen_has_gqa() -> bool:
    import inspect

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "enable_gqa" in inspect.signature(varlen_attn).parameters


_VARLEN_HAS_GQA = _varlen_has_gqa()


def _padded_sdpa(
    query: Tensor, key: Tensor, value: Tensor, layout: PaddedLayout, scale: float | None, window: int | None
) -> Tensor:
    """sdpa over batches of sequences of similar length, [n, heads, d].

    Padding at the end needs no mask: under causal attention no real token sees what comes after it.
    """
    grouped = query.shape[1] != key.shape[1]
    batches = (layout.pad(query), layout.pad(key), layout.pad(value))
    answers = []
    for q, k, v in zip(*batches, strict=True):
        mask = None if window is None else _window_mask(q.shape[2], window, q.device)
        answer = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
        answers.append(answer.transpose(1, 2).flatten(0, 1))
    return layout.unpad(torch.cat(answers))


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length], True where a query may look: itself and the window - 1 tokens before it."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)
