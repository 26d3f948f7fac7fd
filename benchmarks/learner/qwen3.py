"""Qwen3 shapes with random weights, batches of unequal lengths, and the FLOPs of a step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.trainer.batch.train_batch import Sample, TrainBatch

PEAK = 989e12
"""FLOP/s of an H100 or H200, dense bfloat16."""
VOCAB = 151_936
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
}
_TINY = {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1280}
_REAL = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCAB}


def model_config(name: str) -> Qwen3Config:
    return Qwen3Config(
        **SHAPES[name],
        **(_TINY if name == "tiny" else _REAL),
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=name != "8B",
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )


def empty_model(name: str, folder: Path) -> Path:
    """Write config.json and a tokenizer that knows only the first ids of the vocabulary.

    vLLM makes its own weights (`load_format=dummy`).
    """
    from agentloop.recipes.tiny.tokenizer import build_tokenizer

    model_config(name).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def random_model(name: str, folder: Path) -> Path:
    """Return a model folder, which is written once and atomically."""
    path = folder / f"qwen3-{name}-random"
    if not path.exists():
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = Qwen3ForCausalLM(model_config(name)).to(torch.bfloat16)
        unfinished = folder / f"{path.name}-{os.getpid()}"
        model.save_pretrained(unfinished)
        unfinished.rename(path)
        del model
    return path


def lengths_of(tokens: int, median: float, sigma: float, cap: int, seed: int = 0) -> list[int]:
    """Return lognormal lengths that add up to `tokens`."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(np.clip(rng.lognormal(np.log(median), sigma), 32, cap)))
    lengths[-1] -= sum(lengths) - tokens
    return [length for length in lengths if length >= 8]


def batch_of(lengths: list[int], trained: float, seed: int = 0, vocab: int = VOCAB) -> TrainBatch:
    """Return a batch in which the last tokens of each sequence are trained: the share `trained` of all tokens."""
    rng = np.random.default_rng(seed)
    samples = []
    for length in lengths:
        mask = np.arange(length) >= max(1, round(length * (1 - trained)))
        samples.append(
            Sample(
                token_ids=rng.integers(0, vocab, length).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, rng.normal(-12.0, 0.1, length), 0).astype(np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
                advantage=float(rng.normal()),
            )
        )
    return TrainBatch(samples)


def flops(config: Qwen3Config, lengths: list[int], head_tokens: int, *, is_frozen: bool = False) -> float:
    """Return the FLOPs of forward and backward, without recomputation.

    Counts 6 per token and parameter of the layers, causal attention, and the LM head at `head_tokens`. A frozen model
    with trained adapters counts 4, because it has no gradients of weights.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = config.hidden_size * config.head_dim * (2 * heads + 2 * kv_heads)
    layers = config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    pairs = config.num_hidden_layers * heads * config.head_dim * sum(length**2 for length in lengths)
    products = layers * sum(lengths) + config.hidden_size * config.vocab_size * head_tokens
    return (4.0 if is_frozen else 6.0) * products + 6.0 * pairs
