"""Load a language model from a Hugging Face folder, with its vision tower where it has one that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agentloop.vision.processor import FAMILIES


def load_language_model(model: str | Path, *, dtype: torch.dtype, attention: str, tower_attention: str = "sdpa") -> Any:
    """A transformers model; `attention` is the implementation of the decoder, `tower_attention` of the tower.

    Raises what transformers raises for folders that it cannot load (`OSError`, `ValueError`, `KeyError`).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if AutoConfig.from_pretrained(model).model_type not in FAMILIES:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation=attention)
    implementations = {"text_config": attention, "vision_config": "sdpa"}
    loaded: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype, attn_implementation=implementations)
    # Not in the call above: it would look for the package of whatever has "flash" in its name.
    loaded.base_model.visual.config._attn_implementation = tower_attention
    return loaded


def tower_of(model: Any) -> Any | None:
    """The vision tower of a transformers model; None for a text model and for towers of kinds that are not known."""
    return model.base_model.visual if model.config.model_type in FAMILIES else None
