"""`ModelShape`: widths and parameter counts of a decoder, from its config, for estimates of memory and time."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from agentloop.trainer.planning.flops import head_width, mlp_width


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelShape:
    """Shape of a decoder; widths are in features. A vision tower is not counted, because it is relatively small."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    """Width of the gated MLP of a dense layer."""
    vocab: int
    tied: bool
    """Whether the LM head is the embedding."""
    qk_norm: bool
    dense_parameters: int
    """Parameters of all layers, and of the last norm, without the routed experts."""
    expert_parameters: int = 0
    """Parameters of the routed experts of all layers."""
    linear_parameters: int = 0
    """Weights of linear layers outside routed experts: those that an engine in FP8 rounds."""
    linear_rows: int = 0
    """Rows of these weights."""
    num_experts: int = 0
    experts_per_token: int = 0
    expert_mlp: int = 0
    linear_layers: int = 0
    """Layers with linear attention, which cache no keys and values."""
    latent: int = 0
    """Numbers that multi-head latent attention caches per token and layer; 0: all keys and values are cached."""
    has_tower: bool = False
    """Whether it has a vision tower."""

    @classmethod
    def from_config(cls, hf_config: Any) -> ModelShape:
        """Read the shape from a transformers config, and count the parameters of the model that transformers builds."""
        config = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
        heads: int = config.num_attention_heads
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        experts = next((n for name in names if (n := getattr(config, name, 0))), 0)
        latent = getattr(config, "kv_lora_rank", None) or 0
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_width(config, heads),
            mlp=mlp_width(config),
            vocab=config.vocab_size,
            # In vision models the outer config has this key, but the text config may lack it.
            tied=bool(getattr(hf_config, "tie_word_embeddings", getattr(config, "tie_word_embeddings", True))),
            qk_norm=str(getattr(config, "model_type", "")).startswith("qwen3"),
            **_count(config),
            num_experts=experts,
            experts_per_token=getattr(config, "num_experts_per_tok", 0) or 0,
            expert_mlp=(getattr(config, "moe_intermediate_size", 0) or config.intermediate_size) if experts else 0,
            linear_layers=(getattr(config, "layer_types", None) or []).count("linear_attention"),
            latent=latent + config.qk_rope_head_dim if latent else 0,
            has_tower=getattr(hf_config, "vision_config", None) is not None,
        )

    @property
    def query(self) -> int:
        """Width of all queries, and of the output of attention."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one vocabulary matrix."""
        return self.vocab * self.hidden

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of embedding and LM head."""
        return self.embedding_parameters * (1 if self.tied else 2)

    @property
    def dense_layer_parameters(self) -> float:
        """Parameters of a layer without its routed experts, on average."""
        return self.dense_parameters / self.layers

    @property
    def expert_layer_parameters(self) -> float:
        """Parameters of the routed experts of a layer, on average."""
        return self.expert_parameters / self.layers

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.vocabulary_parameters + self.dense_parameters + self.expert_parameters

    @property
    def experts_of_layers(self) -> int:
        """Routed experts of all layers."""
        return self.expert_parameters // (3 * self.hidden * self.expert_mlp) if self.num_experts else 0

    def engine_bytes(self, *, fp8: bool, experts: float = 1.0) -> float:
        """Return the bytes of an engine's weights, with this fraction of its routed experts.

        Weights have two bytes. With `fp8` those of linear layers and experts have one, and each of their rows has a
        scale in float32.
        """
        dense, routed = 2 * (self.vocabulary_parameters + self.dense_parameters), 2 * self.expert_parameters
        if fp8:
            dense += 4 * self.linear_rows - self.linear_parameters
            routed += 4 * self.experts_of_layers * (2 * self.expert_mlp + self.hidden) - self.expert_parameters
        return dense + experts * routed

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters of this rank for all linear layers, and for each expert."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        if not self.num_experts:
            return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))
        return rank * (self.layers * attention + self.experts_of_layers * (2 * self.hidden + 3 * self.expert_mlp))

    def trained_parameters(self, lora_rank: int) -> int:
        """Return the number of trained parameters: those of adapters, or all if `lora_rank` is 0."""
        return self.adapter_parameters(lora_rank) if lora_rank else self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of an engine's KV cache in half precision."""
        return 2 * (self.latent or 2 * self.key) * (self.layers - self.linear_layers)


def _count(text_config: Any) -> dict[str, int]:
    """Return the counted fields of `ModelShape`, for a decoder without its vocabulary."""
    import torch
    from torch import nn
    from transformers import AutoModel

    with torch.device("meta"):  # takes neither memory nor time
        model = AutoModel.from_config(deepcopy(text_config), attn_implementation="eager")
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    experts = sum(count for name, count in counts.items() if ".experts." in name)
    linear = [
        module.weight
        for name, module in model.named_modules()
        # A router is named gate, and stays as it is.
        if isinstance(module, nn.Linear) and ".experts." not in name and not name.endswith(".gate")
    ]
    return {
        "dense_parameters": sum(counts.values()) - experts - model.get_input_embeddings().weight.numel(),
        "expert_parameters": experts,
        "linear_parameters": sum(weight.numel() for weight in linear),
        "linear_rows": sum(len(weight) for weight in linear),
    }
