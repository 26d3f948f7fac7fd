"""Model folders of the shapes of Qwen3, without weights: vLLM makes its own (`load_format=dummy`)."""

from __future__ import annotations

from pathlib import Path

_COMMON = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1280},
    "0.6B": _COMMON | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                       "num_attention_heads": 16},
    "4B": _COMMON | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
                       "num_attention_heads": 32},
    "8B": _COMMON | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                       "num_attention_heads": 32},
}  # fmt: skip
TIED = ("tiny", "0.6B", "4B")


def model_folder(shape: str, folder: Path, longest: int = 4096) -> Path:
    """config.json and a tokenizer, which knows the first ids of the vocabulary only."""
    from transformers import Qwen3Config

    from agentloop.recipes.tiny.tokenizer import build_tokenizer

    config = Qwen3Config(
        **SHAPES[shape],
        max_position_embeddings=longest,
        tie_word_embeddings=shape in TIED,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
