"""Build a randomly initialised Qwen2.5-VL model of less than a million parameters and save it as a model folder.

    python -m agentloop.recipes.deepeyes.tiny_model

writes the model from which tiny_sft.yaml starts.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.recipes.tiny.model import write_model
from agentloop.recipes.tiny.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

START = Path(__file__).parent / "data" / "tiny_start"

VISION_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
MIN_PIXELS = 56 * 56
MAX_PIXELS = 112 * 112
"""Maximum pixels of an image as seen: 16 tokens."""
MAX_TOKENS = 1024


def vision_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer of `tiny` with image tokens and a template that uses them."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS.values())})
    template = files("agentloop.recipes.deepeyes") / "tiny_chat_template.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer


def vision_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the ids of the image tokens under their names in a config."""
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in VISION_TOKENS.items()}


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Return a config with all parts of the large models.

    These are windowed and full attention in the tower, rotary sections, grouped queries and a tied head.
    """
    from transformers import Qwen2_5_VLConfig

    hidden = 128
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": hidden,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_TOKENS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": [1],
        "window_size": 56,
        "initializer_range": 0.05,
    }
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, dtype="float32", **vision_ids(tokenizer)
    )


def build_model(folder: str | Path, seed: int = 0) -> Path:
    """Write a randomly initialised float32 model, its tokenizer and image processor to `folder` and return it."""
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    folder = Path(folder)
    tokenizer = vision_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(model_config(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_processor(folder, patch_size=14, pixels=(MIN_PIXELS, MAX_PIXELS), processor="Qwen2_5_VLProcessor")
    return folder


def write_processor(folder: Path, *, patch_size: int, pixels: tuple[int, int], processor: str) -> None:
    """Write preprocessor_config.json in the form of the model family."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": processor,
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": pixels[0], "longest_edge": pixels[1]},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_model(build_model, START)
