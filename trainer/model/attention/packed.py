"""Causal attention over packed rows: several sequences in one row, without padding and without a mask.

A model loaded with `attn_implementation=register(kernel)` calls this function in every layer. The starts of sequences
come as keyword arguments (`cu_seq_lens_q`, `max_length_q`), which transformers passes through the forward of its
models. `PackedRow.kwargs` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agentloop.trainer.model.attention import ops as attention_ops
from agentloop.trainer.model.attention.padded_layout import PaddedLayout
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.attention.shared_prefix import SharedPrefixes


def register(kernel: str = "sdpa", sequence: SequenceGroup | None = None) -> str:
    """Register the attention with transformers, and return its name for `attn_implementation`.

    `kernel` is the result of `choice.choose`. The ranks of `sequence` share each row. Nothing is registered with the
    mask interface, so transformers builds no mask.
    """
    from transformers import AttentionInterface

    # transformers refuses a name with "sdpa" for models that do not support its own sdpa.
    name = f"agentloop_{'torch' if kernel == 'sdpa' else kernel}" + ("" if sequence is None else f"_{sequence.name}")
    AttentionInterface.register(name, partial(packed_attention, kernel=kernel, sequence=sequence))
    return name


@dataclass(slots=True, frozen=True, eq=False)
class PackedRow:
    """The segments of one row: whole sequences, or shared prefixes and the rests of their sequences."""

    lengths: tuple[int, ...]
    """Tokens of each segment."""
    position_ids: Tensor
    """[1, num_tokens], int64; 0 at the start of a sequence."""
    cu_seqlens: Tensor
    """[num_segments + 1], int32: start of each segment, then the end of the row."""
    prefixes: SharedPrefixes | None
    padded: PaddedLayout | None
    """Layout for the kernel sdpa and for recurrent layers."""
    divided: bool = False
    """Whether `position_ids` cover only this rank's part of the row (see `SequenceGroup`)."""
    num_own: int | None = None
    """Tokens of that part without its padding."""
    routed: Tensor | None = None
    """Experts of the tokens of `position_ids`, int16 [decoder layers, num_tokens, k]; -1 where the router chooses, and
    None where it chooses everywhere."""

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        padded: bool = True,
        parents: Sequence[int | None] = (),
    ) -> PackedRow:
        """Return the row of segments with these lengths; `padded` is for the kernel sdpa and recurrent layers.

        `parents[i]` is the earlier segment that is the prefix of segment i, or None (see `SharedPrefixes`).
        """
        prefixes = SharedPrefixes.of(lengths, parents, device) if any(p is not None for p in parents) else None
        starts = [0] * len(lengths) if prefixes is None else prefixes.positions
        position_ids = np.concatenate([np.arange(length) + s for length, s in zip(lengths, starts, strict=True)])[None]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return cls(
            tuple(lengths),
            torch.from_numpy(position_ids).to(device, non_blocking=True),
            torch.from_numpy(cu_seqlens).to(device, non_blocking=True),
            prefixes,
            PaddedLayout.of(lengths, device) if padded and prefixes is None else None,
        )

    def kwargs(self) -> dict[str, Any]:
        """Return keyword arguments for the forward of a transformers model with `input_ids` [1, num_tokens].

        Except for `padded` they are tensors and plain numbers, so one compiled layer serves all rows.
        """
        longest = max(self.lengths)
        kwargs: dict[str, Any] = {
            "position_ids": self.position_ids,
            "cu_seq_lens_q": self.cu_seqlens,
            "cu_seq_lens_k": self.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
            "use_cache": False,
        }
        if self.divided:
            kwargs["num_tokens"] = sum(self.lengths)
        if self.routed is not None:
            kwargs["routed"] = self.routed
        if self.padded is not None:
            kwargs["padded"] = self.padded
        if self.prefixes is not None:
            kwargs |= {"prefix": self.prefixes.tensors, "max_prefix": self.prefixes.longest}
        return kwargs


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kernel: str,
    sequence: SequenceGroup | None = None,
    num_tokens: int = 0,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    padded: PaddedLayout | None = None,
    prefix: tuple[Tensor, Tensor, Tensor, Tensor] | tuple[None, None, None, None] = (None, None, None, None),
    max_prefix: tuple[int, int] = (0, 0),
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention: query [1, heads, n, d], key and value [1, kv_heads, n, d] to [1, n, heads, d].

    With `sequence` the n tokens are this rank's part of a row of `num_tokens`, padded to the length of the first part.
    `s_aux` [heads] are the logits of attention sinks, as in gpt-oss. Plain torch computes a `softcap`, and chunks of a
    layer of Llama 4 are sequences of their own. There is no dropout, because the trained policy must be the one that
    sampled. Raises `ValueError` for a row with a mask, with several batch entries, or without the arguments of
    `PackedRow.kwargs`.
    """
    if cu_seq_lens_q is None:
        raise ValueError("packed attention needs cu_seq_lens_q: pass PackedRow.kwargs to the forward")
    if attention_mask is not None or query.shape[0] != 1:
        raise ValueError("packed attention needs one packed row without a mask")
    if sliding_window is not None and sliding_window >= max_length_q and prefix[0] is None:
        sliding_window = None
    rows = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    if sequence is not None:
        length = rows[0].shape[0]
        rows = sequence.to_heads(*rows, num_tokens)
        s_aux = None if s_aux is None else s_aux.chunk(sequence.size)[sequence.rank]
    chunk: int = cast(Any, module).config.attention_chunk_size if getattr(module, _IN_CHUNKS, False) else 0
    chunk = chunk if chunk < max_length_q else 0
    if chunk and prefix[0] is not None:
        raise ValueError("packed attention does not support chunks with a shared prefix")
    if padded is not None and kernel == "sdpa" and softcap is None and s_aux is None and not chunk:
        out = _padded_sdpa(*rows, padded, scaling, sliding_window)
        return (out if sequence is None else sequence.to_tokens(out, length))[None], None
    if prefix[0] is not None and sliding_window is not None:
        raise ValueError("packed attention does not support a sliding window with a shared prefix")
    if chunk:
        cu_seq_lens_q, max_length_q = chunk_starts(cu_seq_lens_q, chunk), chunk
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out, _ = attention_ops.packed_attention(
        *_with_equal_heads(*rows),
        cu_seq_lens_q,
        max_length_q,
        sliding_window or 0,
        scale,
        "math" if kernel == "sdpa" or softcap is not None else kernel,
        *prefix,
        *max_prefix,
        sinks=s_aux,
        softcap=softcap or 0.0,
    )
    out = out[..., : value.shape[-1]]
    return (out if sequence is None else sequence.to_tokens(out, length))[None], None


_IN_CHUNKS = "attends_in_chunks"
"""Attribute of layers that attend only within chunks of a sequence, as in Llama 4."""


def mark_chunked_layers(model: torch.nn.Module) -> None:
    """Mark each layer that attends only within chunks, whose size is in its config.

    A compiled layer that read its own index to find out would be compiled again for each layer.
    """
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        size, kinds = getattr(config, "attention_chunk_size", None), getattr(config, "layer_types", None) or ()
        index = getattr(module, "layer_idx", None)
        if size and isinstance(index, int) and index < len(kinds) and kinds[index] == "chunked_attention":
            setattr(module, _IN_CHUNKS, True)


@torch.library.custom_op("agentloop::chunk_starts", mutates_args=())
def chunk_starts(cu_seqlens: Tensor, size: int) -> Tensor:
    """Return the starts of all chunks of the sequences, then the end of the row, like `cu_seqlens`."""
    ends = cu_seqlens.tolist()
    starts = [start for begin, end in pairwise(ends) for start in range(begin, end, size)]
    return torch.tensor([*starts, ends[-1]], dtype=cu_seqlens.dtype, device=cu_seqlens.device)


@chunk_starts.register_fake
def _(cu_seqlens: Tensor, size: int) -> Tensor:
    return cu_seqlens.new_empty(torch.library.get_ctx().new_dynamic_size())


def _with_equal_heads(*rows: Tensor) -> list[Tensor]:
    """Append zeros to the features of query, key or value [n, heads, d] until all have as many.

    Kernels need that. Zeros change no score, and outputs have zeros in their place. Values of latent attention
    (DeepSeek) have fewer features than keys.
    """
    size = max(row.shape[-1] for row in rows)
    return [row if row.shape[-1] == size else F.pad(row, (0, size - row.shape[-1])) for row in rows]


def _padded_sdpa(
    query: Tensor, key: Tensor, value: Tensor, layout: PaddedLayout, scale: float | None, window: int | None
) -> Tensor:
    """Compute sdpa over batches of sequences of similar length, [n, heads, d].

    Padding at the end needs no mask, because causal attention never looks ahead.
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
    """Return [length, length]: True for the query itself and the window - 1 tokens before it."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)
