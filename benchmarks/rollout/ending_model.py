"""A model of a usual shape each of whose sampled tokens ends its turn with the same probability."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from agentloop.recipes.tiny.tokenizer import build_tokenizer
from benchmarks.learner.qwen3 import model_config

SHAPES = ("135M", "0.6B", "tiny")
MEAN_TOKENS = 3.6
"""Sampled tokens of a turn, the last one included."""


def ending_model(shape: str, folder: Path) -> Path:
    """Write the model and its tokenizer.

    No layer changes the residual stream, which is 1 everywhere. So the head alone sets the logits: ordinary tokens of
    the tokenizer are equally likely, its end token has the probability 1 / `MEAN_TOKENS`, and no other token occurs.
    """
    config = _config(shape)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    added = set(tokenizer.added_tokens_decoder)
    ordinary = [token for token in range(len(tokenizer)) if token not in added]
    logits = torch.full([config.vocab_size], -40.0)
    logits[ordinary] = 0.0
    logits[tokenizer.eos_token_id] = math.log(len(ordinary) / (MEAN_TOKENS - 1))
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(config).state_dict().items()}
    weights = {name: _weight(name, size) for name, size in shapes.items()}
    weights["lm_head.weight"] = (logits / config.hidden_size)[:, None].expand(-1, config.hidden_size).bfloat16()
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def _weight(name: str, shape: torch.Size) -> Tensor:
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return torch.zeros(shape, dtype=torch.bfloat16)
    if len(shape) == 1 or "embed_tokens" in name:
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)


def _config(shape: str) -> PreTrainedConfig:
    if shape != "135M":
        config: Any = model_config(shape)
        config.tie_word_embeddings = False
        return config
    return LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49_152,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
