"""Load a language model from a Hugging Face folder, with its vision tower if the family is supported."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from agentloop.vision.processor import FAMILIES

_LOADING = threading.Lock()
"""Held while a model loads: transformers patches functions of torch for all threads, so engine and learner take
turns."""


def load_language_model(model: str | Path, *, dtype: torch.dtype, attention: str, tower_attention: str = "sdpa") -> Any:
    """Load a transformers model with attention implementations for the decoder and the vision tower.

    Raises the errors of transformers for folders that it cannot load (`OSError`, `ValueError`, `KeyError`).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    with _LOADING:
        if AutoConfig.from_pretrained(model).model_type not in FAMILIES:
            return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention)
        each = {"text_config": attention, "vision_config": "sdpa"}
        loaded: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype, attn_implementation=each)
    # Set after loading, because from_pretrained looks for a package if the implementation is named "flash".
    loaded.base_model.visual.config._attn_implementation = tower_attention
    return loaded


def recurrent_modules(model: Any) -> list[Any]:
    """Return the modules of a model that carry a state from token to token, such as Mamba and gated delta nets.

    All of them except lightning attention have a convolution over tokens.
    """
    return [
        module
        for module in model.modules()
        if type(module).__name__.endswith("LightningAttention")
        or any(type(child).__name__ == "Conv1d" for child in module.children())
    ]


def tower_of(model: Any) -> Any | None:
    """Return the vision tower of a transformers model, or None for text models and unsupported families."""
    return model.base_model.visual if model.config.model_type in FAMILIES else None
