"""Attention of a vision tower over the patches of all images of a row, within images or windows.

A tower with the implementation `register(kernel)` computes all images in one call. With sdpa, transformers makes one
call per window: hundreds for a large image, in every layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentloop.trainer.model.attention import ops as attention_ops

_NO_PREFIX = (None, None, None, None, 0, 0)


def register(kernel: str) -> str:
    """Register the attention with transformers, and return its name for `attn_implementation` of the tower.

    `kernel` is the kernel of the language model (the result of `choice.choose`), or `math` for tests.
    """
    from transformers import AttentionInterface

    if kernel == "sdpa":
        return kernel
    if kernel == "fa4":
        kernel = "fa2"  # heads of towers have 64, 72 or 80 features; FlashAttention 4 does not support all of them
    name = f"agentloop_flash_tower_{kernel}"  # because of "flash", transformers passes the starts of the images
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
    """Compute attention for transformers: query, key and value [1, heads, patches, d] to [1, patches, heads, d].

    `cu_seq_lens_q` [segments + 1] are the starts of images or windows, then the end. There is no dropout.
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
