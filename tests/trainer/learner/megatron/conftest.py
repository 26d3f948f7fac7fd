"""Tiny models of every supported kind, with weights that no symmetry hides."""

from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.1,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MODELS = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(**_SMALL, rope_parameters=_LLAMA3 | {"original_max_position_embeddings": 16})
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SMALL, head_dim=8, sliding_window=None)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SMALL, head_dim=8, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SMALL, tie_word_embeddings=False)),
    "moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **_SMALL,
            head_dim=8,
            tie_word_embeddings=False,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            norm_topk_prob=True,
        )
    ),
}


def write_models(folder: Path) -> Path:
    """Write a folder for each model to `folder`, and return it."""
    for name, make in _MODELS.items():
        torch.manual_seed(0)
        model = make()
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))
