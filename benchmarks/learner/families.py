"""Hybrid, mixture-of-experts and gpt-oss shapes with random weights, and the FLOPs of a step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151_936,
}
_QWEN3_5 = {
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "hidden_size": 2560,
    "intermediate_size": 9216,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "num_attention_heads": 16,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "vocab_size": 248_320,
}
_GPT_OSS = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201_088,
}
_TINY = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 512, "num_hidden_layers": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen3.5-4B": _QWEN3_5,
    "Qwen3-30B-A3B": _QWEN3_MOE,
    "gpt-oss-20b": _GPT_OSS,
    "tiny-hybrid": _QWEN3_5 | _TINY,
    "tiny-moe": _QWEN3_MOE | _TINY | {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2},
    "tiny-gpt-oss": _GPT_OSS | _TINY | {"num_local_experts": 8, "num_experts_per_tok": 2},
}


def model_config(name: str, layers: int | None) -> Any:
    """Return the configuration of a shape, with `layers` layers if given."""
    shape = dict(SHAPES[name])
    if layers is not None:
        shape["num_hidden_layers"] = layers
    return AutoConfig.for_model(**shape, max_position_embeddings=40960, dtype="bfloat16")


def random_model(name: str, layers: int | None, folder: Path) -> Path:
    """Return a model folder, which is written once and atomically."""
    path = folder / f"{name}-{layers or 'all'}-random"
    if not path.exists():
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(model_config(name, layers), dtype=torch.bfloat16)
        unfinished = folder / f"{path.name}-{os.getpid()}"
        model.save_pretrained(unfinished)
        unfinished.rename(path)
        del model
    return path


def flops(config: Any, lengths: list[int], head_tokens: int) -> float:
    """Return the FLOPs of forward and backward, without recomputation.

    Counts 6 per token and parameter of the matrices that it passes, the LM head at `head_tokens`, and causal attention.
    Recurrences and convolutions, which need few, are not counted.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    used = 0.0
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", 1)
    share = getattr(config, "num_experts_per_tok", 1) / experts
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name and "lm_head" not in name and "conv" not in name:
            is_expert = ".experts." in name
            used += parameter.numel() * (share if is_expert else 1.0) * (name.endswith("bias") is False)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    pairs = 0.0
    for kind in kinds:
        if kind == "full_attention":
            pairs += sum(length**2 / 2 for length in lengths)
        elif kind == "sliding_attention":
            pairs += sum(min(length, config.sliding_window) * length for length in lengths)
    head = config.hidden_size * config.vocab_size * head_tokens
    return 6.0 * (used * sum(lengths) + head) + 12.0 * config.num_attention_heads * config.head_dim * pairs
