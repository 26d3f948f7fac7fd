"""Models of megatron-core from Hugging Face configs: Qwen2, Qwen2.5, Qwen3, and Qwen3's mixtures of experts."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn

from agentloop.trainer.learner.megatron.attention import PackedCoreAttention, RowParams
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.sizing.layouts import Layout


class RmsNorm(nn.RMSNorm):
    """A norm with Megatron's constructor. Ranks that split the tokens of a row sum its gradient."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class PackedGpt(GPTModel):
    """Maps a packed row, or the output of the previous stage, to hidden states; it does not run the LM head."""

    def __init__(self, hf_config: Any, config: TransformerConfig, ranks: Ranks, piece: int) -> None:
        super().__init__(
            config,
            _block_spec(config, ranks),
            hf_config.vocab_size,
            hf_config.max_position_embeddings,
            pre_process=ranks.is_first_stage and piece == 0,
            post_process=ranks.is_last_stage and piece == ranks.pieces - 1,
            share_embeddings_and_output_weights=hf_config.tie_word_embeddings,
            position_embedding_type="none",
            vp_stage=piece if ranks.pieces > 1 else None,
        )
        self.register_buffer("inv_freq", _inverse_frequencies(hf_config), persistent=False)

    def forward(self, input_ids: Tensor, positions: Tensor, row: RowParams) -> Tensor:  # type: ignore[override]
        """Map `input_ids` and `positions` [1, tokens] of this context rank to [tokens / tensor ranks, 1, hidden]."""
        hidden = self.embedding(input_ids=input_ids, position_ids=positions) if self.pre_process else None
        angles = torch.outer(positions[0].float(), self.inv_freq)
        rotary = torch.cat([angles, angles], dim=-1)[:, None, None, :]
        return self.decoder(hidden, None, rotary_pos_emb=rotary, packed_seq_params=row)


class Stage(nn.ModuleList):
    """This rank's part of the model: one or several pieces of consecutive layers."""

    def __init__(self, hf_config: Any, config: TransformerConfig, ranks: Ranks) -> None:
        super().__init__(PackedGpt(hf_config, config, ranks, piece) for piece in range(ranks.pieces))
        self.config = config

    def head_weight(self) -> Tensor:
        """Return the LM head of this rank's share of the vocabulary, [vocab / tensor ranks, hidden]; last stage."""
        last: Any = self[-1]
        is_tied = last.share_embeddings_and_output_weights
        weight: Tensor = last.shared_embedding_or_output_weight() if is_tied else last.output_layer.weight
        return weight


def transformer_config(hf_config: Any, layout: Layout, dtype: torch.dtype) -> TransformerConfig:
    """Return the configuration of megatron-core for a Hugging Face config and a layout."""
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    return TransformerConfig(
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        num_attention_heads=hf_config.num_attention_heads,
        num_query_groups=hf_config.num_key_value_heads,
        kv_channels=head_dim,
        ffn_hidden_size=hf_config.intermediate_size,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=hf_config.rms_norm_eps,
        add_bias_linear=False,
        add_qkv_bias=hf_config.model_type == "qwen2" or bool(getattr(hf_config, "attention_bias", False)),
        qk_layernorm=hf_config.model_type.startswith("qwen3"),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        perform_initialization=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=1,
        sequence_parallel=layout.tensor > 1,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        # Token weights are normalized over the whole mini-batch, so gradients are summed, not averaged.
        calculate_per_token_loss=True,
        deallocate_pipeline_outputs=True,
        # Interleaved stages send in both directions at once; in one batch, two stages would confuse the messages.
        overlap_p2p_comm=layout.virtual > 1,
        batch_p2p_comm=layout.virtual == 1,
        # These options need compiled extensions, or an optimizer that owns the gradients.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        persist_layer_norm=False,
        **_recomputation(layout),
        **_experts(hf_config),
    )


def _recomputation(layout: Layout) -> dict[str, Any]:
    if layout.checkpointing == "off":
        return {}
    if layout.checkpointing == "selective":  # wide activations that are fast to compute
        return {"recompute_granularity": "selective", "recompute_modules": ["mlp", "moe"]}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _experts(hf_config: Any) -> dict[str, Any]:
    if hf_config.model_type != "qwen3_moe":
        return {}
    # Without TransformerEngine, megatron-core 0.16 compares this with None but does not define it.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    return {
        "num_moe_experts": hf_config.num_experts,
        "moe_ffn_hidden_size": hf_config.moe_intermediate_size,
        "moe_router_topk": hf_config.num_experts_per_tok,
        "moe_router_load_balancing_type": "none",
        # The softmax over the chosen experts equals the softmax over all, normalized over the chosen experts.
        "moe_router_pre_softmax": not hf_config.norm_topk_prob,
        "moe_router_dtype": "fp32",
    }


def _block_spec(config: TransformerConfig, ranks: Ranks) -> TransformerBlockSubmodules:
    linear = LocalSpecProvider()
    qk_norm = RmsNorm if config.qk_layernorm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=linear.column_parallel_linear(),
        core_attention=PackedCoreAttention,
        linear_proj=linear.row_parallel_linear(),
        q_layernorm=qk_norm,
        k_layernorm=qk_norm,
    )
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RmsNorm,
            self_attention=ModuleSpec(
                module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RmsNorm,
            mlp=get_mlp_module_spec_for_backend(linear, num_experts=config.num_moe_experts),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    num_layers = config.num_layers // (ranks.pipeline * ranks.pieces)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RmsNorm)


def _inverse_frequencies(hf_config: Any) -> Tensor:
    """Return the inverse frequencies that transformers computes, with scaling, [head_dim / 2]."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    return Qwen3RotaryEmbedding(hf_config).inv_freq.clone()
