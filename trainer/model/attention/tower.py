"""Attention of a vision tower over the patches of all pictures of a row: each looks at its picture, or at its window.

A model of transformers whose tower has the implementation `register(kernel)` computes all of them in one call. With
sdpa it makes a call for each window: hundreds for a large picture, in every layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentloop.trainer.model.attention import ops as attention_ops

_NO_PREFIX = (None, None, None, None, 0, 0)


def register(kernel: str) -> str:
    """Make the attention known to transformers and return its name for `attn_implementation` of the tower.

    `kernel` is one of the language model's, as `attention_choice.choose` returns it, or `math`, for tests.
    """
    from transformers import AttentionInterface

    if kernel == "sdpa":
        return kernel
    if kernel == "fa4":
        kernel = "fa2"  # heads of towers have 64, 72 or 80 features, and FlashAttention 4 is not made for all of them
    name = f"agentloop_flash_tower_{kernel}"  # by "flash" transformers knows that it wants to be told of the pictures
    AttentionInterface.register(name, partial(tower_attention, kernel=kernel))
    return name


def tower_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    kernel: str,
    scaling: float,
    cu_seq_lens_q: Tensor,
    max_length_q: int | Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query, key and value [1, heads, patches, d] to [1, patches, heads, d].

    `cu_seq_lens_q` [segments + 1]: where each picture or window begins, then the end. There is no dropout.
    """
    assert attention_mask is None
    assert query.shape[0] == 1, "one row"
    out, _ = attention_ops.packed_attention(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seq_lens_q.to(torch.int32),
        int(max_length_q),
        0,
        scaling,
        kernel,
        *_NO_PREFIX,
        causal=False,
    )
    return out[None], None
