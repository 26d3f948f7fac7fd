"""Floating-point operations of a decoder's forward pass, from its transformers config.

A multiply-add counts as two. The formulas follow PaLM (arXiv:2204.02311, appendix B), but attention counts only pairs
that the causal mask keeps. Norms, rotary embeddings, softmax, biases and embeddings are omitted; they account for 1 %
or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentloop.trainer.planning.vision import VisionFlops


@dataclass(slots=True, frozen=True)
class ModelFlops:
    """FLOPs of one forward pass; a backward pass takes twice as many. Recomputed activations do not count."""

    per_token: float
    """FLOPs of the layers per token, without attention over pairs and without the LM head."""
    per_head_token: float
    """FLOPs of the LM head per token with logits."""
    per_pair: float
    """FLOPs of scores and values per query-key pair, in all layers with full attention."""
    per_window_pair: float = 0.0
    """FLOPs of scores and values per query-key pair, in all layers with a sliding window."""
    window: int = 0
    """Size of the sliding window in tokens."""
    vision: VisionFlops | None = None

    def forward(self, length: int, num_head_tokens: int, image_patches: tuple[int, ...] = ()) -> float:
        """Return the FLOPs of one sequence; `image_patches` has the patches of each of its images or video frames."""
        flops = self.per_token * length + self.per_head_token * num_head_tokens
        flops += self.per_pair * causal_pairs(length) + self.per_window_pair * window_pairs(length, self.window)
        return flops + (self.vision.forward(image_patches) if self.vision else 0.0)

    def forward_shared(self, prefix: int, lengths: Sequence[int], num_head_tokens: int) -> float:
        """Return the FLOPs of sequences whose shared first `prefix` tokens run once; `lengths` include them."""
        repeated = (len(lengths) - 1) * self.forward(prefix, 0)
        return sum(self.forward(length, 0) for length in lengths) - repeated + self.per_head_token * num_head_tokens

    def matrices(self, num_tokens: int, num_head_tokens: int) -> float:
        """Return the FLOPs of weight matrices in a forward pass; each half of a backward pass takes as many."""
        return self.per_token * num_tokens + self.per_head_token * num_head_tokens

    @classmethod
    def from_config(cls, hf_config: Any) -> ModelFlops:
        """Count grouped-query attention, gated MLPs or experts, sliding windows and the vision tower, if any."""
        config = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
        hidden: int = config.hidden_size
        heads: int = config.num_attention_heads
        kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        head_dim = head_width(config, heads)
        layers: int = config.num_hidden_layers
        latent = getattr(config, "kv_lora_rank", None)
        projections = _latent(config) if latent else hidden * head_dim * (2 * heads + 2 * kv_heads)
        kinds: list[str] = getattr(config, "layer_types", None) or []
        num_linear = kinds.count("linear_attention") if hasattr(config, "linear_num_key_heads") else 0
        attention = (layers - num_linear) * projections + (num_linear and num_linear * _linear(config))
        mlps = sum(_mlp(config, layer) for layer in range(layers))
        num_full, num_window, window = _attention_layers(config)
        pair = 4 * heads * head_dim
        return cls(
            per_token=2 * (attention + mlps),
            per_head_token=2 * hidden * config.vocab_size,
            per_pair=num_full * pair,
            per_window_pair=num_window * pair,
            window=window,
            vision=VisionFlops.from_config(getattr(hf_config, "vision_config", None)),
        )


def head_width(config: Any, heads: int) -> int:
    """Return the width of an attention head; if keys and values differ (latent attention), their mean."""
    if getattr(config, "kv_lora_rank", None):
        return (int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim) + int(config.v_head_dim)) // 2
    layers = getattr(config, "per_layer_config", None) or [config]
    usual = config.hidden_size // heads
    # Layers of Gemma 4 have different widths.
    return round(sum(getattr(layer, "head_dim", None) or usual for layer in layers) / len(layers))


def _latent(config: Any) -> int:
    """Return the number of weights in the multi-head latent attention of a layer."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    latent, rank = config.kv_lora_rank, config.q_lora_rank
    plain, rotated, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    query = (plain + rotated) * heads
    queries = hidden * rank + rank * query if rank else hidden * query
    return int(queries + hidden * (latent + rotated) + latent * heads * (plain + value) + heads * value * hidden)


def _linear(config: Any) -> int:
    """Return the number of weights in a layer with linear attention: queries, keys, values, gates and output."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    return int(config.hidden_size * (2 * keys + 3 * values + 2 * config.linear_num_value_heads))


def mlp_width(config: Any) -> int:
    """Return the inner width of the MLP of a dense layer, from any of its names in transformers."""
    names = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim", "moe_intermediate_size")
    width = next((n for name in names if (n := getattr(config, name, None))), 4 * config.hidden_size)
    return int(np.mean(width))  # Gemma 3n has one per layer


def causal_pairs(length: int) -> float:
    """Return half of all pairs, as is convention."""
    return length * length / 2


def window_pairs(length: int, window: int) -> float:
    """Return the number of causal pairs that are less than `window` apart."""
    near = min(length, window)
    return near * (length - near / 2)


def _mlp(config: Any, layer: int) -> int:
    """Return the number of active weights per token in the MLP or the experts of a layer."""
    hidden: int = config.hidden_size
    chosen: int = getattr(config, "num_experts_per_tok", None) or 0
    if not chosen or _is_dense(config, layer):
        return 3 * hidden * mlp_width(config)
    width: int = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    shared: int = getattr(config, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(config, "n_shared_experts", None) or 0) * width
    experts = next(
        (n for name in ("num_local_experts", "num_experts", "n_routed_experts") if (n := getattr(config, name, 0))), 0
    )
    return 3 * hidden * (chosen * width + shared) + hidden * int(experts)


def _is_dense(config: Any, layer: int) -> bool:
    """Return whether a layer of a mixture-of-experts model has a plain MLP."""
    return (
        layer in (getattr(config, "mlp_only_layers", None) or ())
        or layer < (getattr(config, "first_k_dense_replace", None) or 0)
        or (layer + 1) % (getattr(config, "decoder_sparse_step", None) or 1) != 0
    )


def _attention_layers(config: Any) -> tuple[int, int, int]:
    """Return the numbers of layers with full attention and with a sliding window, and the window in tokens."""
    window: int = getattr(config, "sliding_window", None) or 0
    if not window or getattr(config, "use_sliding_window", None) is False:
        window = 0
    kinds: list[str] = getattr(config, "layer_types", None) or []
    if not kinds:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    # Linear attention has no pairs; beyond its projections its cost is negligible.
    sliding = kinds.count("sliding_attention") if window else 0
    return kinds.count("full_attention") + kinds.count("sliding_attention") - sliding, sliding, window
