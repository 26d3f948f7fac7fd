"""Tiny models of every supported kind, with weights that no symmetry hides."""

from pathlib import Path

import pytest
import torch
from transformers import (
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
_MODELS = {
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
    """A folder with a folder for each of qwen3, qwen2 and moe."""
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
