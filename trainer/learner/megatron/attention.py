"""Core attention for Megatron's layers over packed rows, which megatron-core lacks without TransformerEngine.

With context parallelism a rank has a slice of the row with all heads. For attention, ranks exchange tokens for heads,
so that each has the whole row and some of the heads (DeepSpeed-Ulysses, arXiv 2309.14509). All kernels then work
unchanged, and ranks have equal work regardless of sequence lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import all_to_all
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from agentloop.trainer.model.attention.packed import PackedRow, packed_attention


@dataclass
class RowParams(PackedSeqParams):
    """Arguments of a row for Megatron's layers, which treat it as one long sequence with its own rotary angles."""

    qkv_format: str = "sbhd"
    row: PackedRow | None = None
    kernel: str = "sdpa"


class PackedCoreAttention(MegatronModule):
    """Attention without parameters, with the signature of Megatron's core attentions."""

    def __init__(self, config: TransformerConfig, layer_number: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(config=config)
        self._group = kwargs["pg_collection"].cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        /,
        *,
        packed_seq_params: RowParams,
        **kwargs: Any,
    ) -> Tensor:
        """Map query [tokens, 1, heads, d], key and value [tokens, 1, kv_heads, d] to [tokens, 1, heads * d]."""
        params = packed_seq_params
        assert params.row is not None
        q, k, v = (_whole_row(part[:, 0], self._group).transpose(0, 1)[None] for part in (query, key, value))
        out, _ = packed_attention(self, q, k, v, None, kernel=params.kernel, **params.row.kwargs())
        return _own_slice(out[0], self._group).flatten(1)[:, None]


def _whole_row(part: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
    """Map this rank's slice [tokens, heads, d] to [all tokens, its share of the heads, d]."""
    ranks = group.size()
    if ranks == 1:
        return part
    tokens, heads, size = part.shape
    by_rank = part.view(tokens, ranks, heads // ranks, size).transpose(0, 1).contiguous()
    return all_to_all(group, by_rank.flatten(0, 1))


def _own_slice(part: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
    """Map [all tokens, share of the heads, d] back to this rank's slice, [tokens, heads, d]."""
    ranks = group.size()
    if ranks == 1:
        return part
    tokens, heads, size = part.shape
    by_rank = all_to_all(group, part.contiguous()).view(ranks, tokens // ranks, heads, size)
    return by_rank.transpose(0, 1).reshape(tokens // ranks, ranks * heads, size)
