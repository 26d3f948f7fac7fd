"""A model that is made in milliseconds, and samples to train it on."""

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentloop.trainer.batch.train_batch import Sample, TrainBatch

VOCAB = 64


def save_tiny_qwen3(folder: Path, **changes: object) -> Path:
    """Return a model of two layers and 20,000 parameters, identical in every call; its attention matters."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1, "tie_word_embeddings": True}
    Qwen3ForCausalLM(Qwen3Config(**(sizes | heads | changes))).save_pretrained(folder)
    return folder


def save_small_qwen3(folder: Path) -> Path:
    """Return a model large enough for GPU kernels: three layers, heads of 64, 512 words."""
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}
    return save_tiny_qwen3(folder, **sizes, num_attention_heads=8, initializer_range=0.05)


def random_batch(
    count: int, *, seed: int = 0, lengths: tuple[int, int] = (4, 40), vocab: int = VOCAB, logprob: float = -4.1
) -> TrainBatch:
    """Return `count` samples with lengths in the half-open range `lengths`.

    About half of their tokens are sampled, and their advantages have either sign.
    """
    rng = np.random.default_rng(seed)
    samples = []
    for length in rng.integers(*lengths, size=count):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        ids = rng.integers(0, vocab, length).astype(np.int32)
        logprobs = np.where(mask, logprob, 0).astype(np.float32)
        samples.append(Sample(ids, mask, logprobs, np.zeros(length, np.int32), float(rng.normal())))
    return TrainBatch(samples)
