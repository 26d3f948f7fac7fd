"""The models that the Megatron backend trains, known without megatron-core: `agentloop plan` asks, too."""

from __future__ import annotations

from typing import Any

from agentloop.errors import UserError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
_ROPE = ("default", "linear", "llama3")
"""Types of rotary embedding that change only the angles."""


def check_supported(hf_config: Any) -> None:
    """Raise `UserError` if the backend does not support a model."""
    if obstacle := why_unsupported(hf_config):
        raise UserError(obstacle)


def why_unsupported(hf_config: Any) -> str:
    """Return why the backend does not support a model, and the fix; empty if it does."""
    kind = hf_config.model_type
    if kind not in SUPPORTED:
        return f"learner.backend=megatron trains {', '.join(SUPPORTED)}, not {kind}. Set learner.backend=fsdp."
    missing = _missing(hf_config)
    return f"learner.backend=megatron {missing}. Set learner.backend=fsdp." if missing else ""


def _missing(hf_config: Any) -> str:
    kind = hf_config.model_type
    rope = getattr(hf_config, "rope_parameters", None) or {}
    if (name := rope.get("rope_type", "default")) not in _ROPE:
        return f"does not support rope_type={name}"
    is_mistral_window = kind == "mistral" and hf_config.sliding_window is not None
    if is_mistral_window or any("sliding" in layer for layer in getattr(hf_config, "layer_types", None) or ()):
        return "does not support sliding windows"
    if getattr(hf_config, "mlp_bias", False):
        return "does not support mlp_bias"
    if kind == "llama" and hf_config.attention_bias:
        return "does not support attention_bias of llama"
    if kind == "qwen3_moe" and (hf_config.mlp_only_layers or hf_config.decoder_sparse_step != 1):
        return "needs experts in every layer or in none"
    return ""
