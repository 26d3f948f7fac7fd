"""A small version of every causal language model in the installed transformers, with layers of each kind."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

_COUNTS: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), 4),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "num_layers_per_stack"), 1),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "zero_expert_num"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "first_k_dense_replace"), 1),
    **dict.fromkeys(("linear_num_key_heads", "index_n_heads", "o_groups"), 2),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    "n_shared_experts": 1,
    "index_topk": 8,
    "index_block_size": 4,
    "index_topk_blocks": 2,
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "local_attention"), 8),
    **dict.fromkeys(("attention_window_size", "max_window_layers", "attention_chunk_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 128),
    **dict.fromkeys(("model_max_length", "max_source_positions", "max_target_positions"), 128),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "rel_extent"), 16),
}
"""Numbers of layers, heads, experts and tokens by their names in configurations."""
_WIDTHS: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size", "backbone_hidden_size"), 32),
    **dict.fromkeys(("attention_hidden_size", "lru_width"), 32),
    **dict.fromkeys(("head_dim", "dim_head", "d_head", "swa_head_dim", "kv_channels", "linear_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("qk_head_dim", "kv_lora_rank", "q_lora_rank", "o_lora_rank", "laurel_rank", "adapter_rank"), 16),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "dim_ff", "dff"), 48),
    **dict.fromkeys(("d_inner", "feed_forward_size", "expert_ffn_hidden_size", "dense_intermediate_size"), 48),
    **dict.fromkeys(("intermediate_size_mlp", "shared_intermediate_size", "moe_shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "time_step_rank", "mamba_dt_rank"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 8),
    "mamba_d_ssm": 64,
    **dict.fromkeys(("query_pre_attn_scalar", "router_hidden_size"), 16),
}
"""Widths of a layer or a head."""

_SLIDING = ["sliding_attention", "full_attention"] * 2
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_HYBRID = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16}
_QWEN4 = _INDEXER | {"indexer_compress_ratio": 4, "hc_lowrank": 8}
_LOOP = {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3}
_DOTS3 = {"per_layer_config": {}, "head_dim": 16}
_ALONE: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"layer_types": _SLIDING, "rope_parameters": dict.fromkeys(_SLIDING, _ROPE)},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {"per_layer_config": {}, "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
    },
    "dots3_note_text": _DOTS3,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "gemma3": {"text_config": {"layer_types": _SLIDING}},
    "gemma3_text": {"layer_types": _SLIDING},
    "gemma3n_text": {"layer_types": _SLIDING, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4": {"text_config": {"enable_moe_block": True, "top_k_experts": 2}},
    "gemma4_text": {"enable_moe_block": True, "top_k_experts": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "inkling_text": {"layer_types": ["hybrid_sliding", "hybrid"] * 2},
    "inkling2_loop_text": {"unpadded_vocab_size": 128, **_LOOP},
    "inkling2_text": {"unpadded_vocab_size": 128},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _HYBRID},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "roc_bert": {"pronunciation_vocab_size": 128, "shape_vocab_size": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attn_layer_period": 2, "attn_layer_offset": 0},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Other sizes for families in which these do not go together."""

NOT_BUILT = {
    "blt": "its parts have sizes that follow from each other in its code",
    "gemma3n": "its vision tower needs the package timm",
    "gemma4_assistant": "it reads the states of another model",
    "gemma4_unified_assistant": "it reads the states of another model",
    "musicgen": "it is a decoder inside of three models, and writes sound",
    "musicgen_melody": "it is a decoder inside of three models, and writes sound",
}
"""Families that cannot be made small, and why."""


def save_small_model(model_type: str, folder: Path, *, width: int = 1, **sizes: int) -> Path:
    """Write random weights to a folder, far enough from zero for every part of the model to matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config(model_type, width=width, **sizes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = partial(torch.randn, parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.2 * noise() / math.sqrt(width))
            else:
                parameter.add_(0.1 * noise())
        # Incompatible sizes often fail only in the forward. With flash-linear-attention it runs only on CUDA.
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model.eval().to(device)(input_ids=torch.tensor([[5, 9, 7, 11, 6]], device=device), use_cache=False)
    model.save_pretrained(folder)
    return folder


def small_config(model_type: str, *, width: int = 1, **sizes: int) -> Any:
    """Return the configuration of a family with every large size made small; layers and heads are `width` times wider.

    `sizes` are other sizes than usual, before that.
    """
    return _small(CONFIG_MAPPING[model_type], _ALONE.get(model_type, {}) | sizes, width)


def _small(kind: Any, own: dict[str, Any], width: int) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {name: size for name, size in _COUNTS.items() if name in names}
    values |= {name: size * width for name, size in _WIDTHS.items() if name in names}
    if "kv_lora_rank" in names:  # there are as many of keys and values, whatever is said
        values["num_key_value_heads"] = values["num_attention_heads"]
    values |= {name: word for name, word in SPECIAL.items() if name in names}
    for name, part in kind.sub_configs.items():
        if part is AutoConfig:  # one of several families: the one that it has where nothing is said
            part = type(getattr(kind(), name))
        if part is not type(None):
            values[name] = _small(part, own.get(name, {}), width)
    own = {name: size * width if name in _WIDTHS else size for name, size in own.items()}
    return kind(**values | {name: value for name, value in own.items() if name not in kind.sub_configs})
