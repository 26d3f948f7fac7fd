"""The core attention of Megatron's layers over packed rows, which its own one without TransformerEngine refuses.

With context parallelism a rank has a slice of the row and all heads of it; for attention ranks exchange so that each
has the whole row and some of the heads (DeepSpeed-Ulysses, arXiv 2309.14509). Every kernel then works as it is, and the
work is as even as the number of heads, however long the sequences are.
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
    """Carries a row through Megatron's layers. To them it is one long sequence with rotary angles of its own."""

    qkv_format: str = "sbhd"
    row: PackedRow | None = None
    kernel: str = "sdpa"


class PackedCoreAttention(MegatronModule):
    """No parameters; the signature is that of Megatron's core attentions."""

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
        """query [tokens, 1, heads, d], key and value [tokens, 1, kv_heads, d] to [tokens, 1, heads * d]."""
        params = packed_seq_params
        assert params.row is not None
        q, k, v = (_whole_row(part[:, 0], self._group).transpose(0, 1)[None] for part in (query, key, value))
        out, _ = packed_attention(self, q, k, v, None, kernel=params.kernel, **params.row.kwargs())
        return _own_slice(out[0], self._group).flatten(1)[:, None]


def _whole_row(part: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
    """[tokens, heads, d] of this rank's slice to [all tokens, its share of the heads, d]."""
    ranks = group.size()
    if ranks == 1:
        return part
    tokens, heads, size = part.shape
    by_rank = part.view(tokens, ranks, heads // ranks, size).transpose(0, 1).contiguous()
    return all_to_all(group, by_rank.flatten(0, 1))


def _own_slice(part: Tensor, group: torch.distributed.ProcessGroup) -> Tensor:
    """The way back."""
    ranks = group.size()
    if ranks == 1:
        return part
    tokens, heads, size = part.shape
    by_rank = all_to_all(group, part.contiguous()).view(ranks, tokens // ranks, heads, size)
    return by_rank.transpose(0, 1).reshape(tokens // ranks, ranks * heads, size)
