"""Small vision-language models with random weights, one of each family, and images."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from agentloop.recipes.deepeyes.tiny_model import vision_ids, vision_tokenizer, write_processor

FAMILIES = {
    "qwen2_vl": (Qwen2VLForConditionalGeneration, Qwen2VLConfig, 14, "Qwen2VLProcessor"),
    "qwen2_5_vl": (Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig, 14, "Qwen2_5_VLProcessor"),
    "qwen3_vl": (Qwen3VLForConditionalGeneration, Qwen3VLConfig, 16, "Qwen3VLProcessor"),
}
TOWERS = {
    "qwen2_vl": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2},
    "qwen2_5_vl": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [1],
        "window_size": 56,
    },
    "qwen3_vl": {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    },
}


def build_vision_model(folder: Path, family: str, *, max_pixels: int = 224 * 224) -> Path:
    """Write a model of `family` to `folder`."""
    model_class, config_class, patch, processor = FAMILIES[family]
    tokenizer = vision_tokenizer()
    interleaved = {"mrope_interleaved": True} if family == "qwen3_vl" else {}
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6], **interleaved},
        "initializer_range": 0.2,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    tower = {**TOWERS[family], "patch_size": patch, "initializer_range": 0.2}
    torch.manual_seed(0)
    config = config_class(text_config=text, vision_config=tower, tie_word_embeddings=True, **vision_ids(tokenizer))
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_processor(folder, patch_size=patch, pixels=(2 * (2 * patch) ** 2, max_pixels), processor=processor)
    return folder


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return smooth noise, so that scaling does not make all images grey."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
