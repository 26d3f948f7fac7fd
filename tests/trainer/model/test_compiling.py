from functools import partial

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DiffLlamaConfig,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from agentloop.errors import UserError
from agentloop.trainer.model import layers
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.compiling import compile_whole
from agentloop.trainer.model.packed_lm import hidden_states, load_packed_lm
from tests.support.small_models import save_small_model

pytestmark = pytest.mark.slow


def run(layer, hidden):
    return layer(hidden)


def test_many_models_compile_in_one_process():
    """Run each model with and without gradients; torch stops compiling the same code at the ninth time."""
    for width in range(2, 8):
        layer = torch.nn.Linear(width, 3)
        forward = compile_whole(run, backend="eager")
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                for length in (4, 5):
                    hidden = torch.randn(length, width)
                    assert torch.equal(forward(layer, hidden), layer(hidden))


_SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        pytest.param(LlamaConfig(**_SHAPE), 1, id="llama"),
        pytest.param(Qwen3Config(**_SHAPE, head_dim=8), 1, id="qwen3"),
        pytest.param(
            Qwen3MoeConfig(**_SHAPE, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2),
            1,
            id="qwen3_moe",
        ),
        pytest.param(DiffLlamaConfig(**_SHAPE), 1, id="diffllama: another number in each layer"),
        pytest.param(GptOssConfig(**_SHAPE, **_EXPERTS, head_dim=8), 2, id="gpt_oss: full and sliding"),
        pytest.param(Gemma3TextConfig(**_SHAPE, head_dim=8), 2, id="gemma3: full and sliding"),
        pytest.param(
            Llama4TextConfig(
                **_SHAPE, **_EXPERTS, head_dim=8, intermediate_size_mlp=48, attention_chunk_size=4, pad_token_id=0
            ),
            2,
            id="llama4: full and chunked",
        ),
        pytest.param(
            DeepseekV3Config(
                **_SHAPE | {"num_key_value_heads": 4},
                **_LATENT,
                moe_intermediate_size=16,
                n_routed_experts=4,
                num_experts_per_tok=2,
                n_group=1,
                topk_group=1,
                first_k_dense_replace=2,
            ),
            2,
            id="deepseek_v3: dense and experts",
        ),
    ],
)
def test_one_compilation_serves_all_layers_of_a_kind(config, kinds, tmp_path, monkeypatch):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    monkeypatch.setattr(layers, "compile_whole", partial(compile_whole, backend="eager"))
    policy = load_packed_lm(tmp_path, torch.float32, kernel="sdpa", compiled=True)
    row = PackedRow.of([5, 3], padded=False)
    torch._dynamo.utils.counters.clear()
    hidden_states(policy.backbone, torch.zeros(1, 8, dtype=torch.long), row, None)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == kinds


def test_numbers_of_layers_are_constants_of_their_graph(tmp_path, monkeypatch):
    """As inputs they would be computed with on the CPU, and gpt-oss negates a limit."""
    scalars = []

    def backend(graph, inputs):
        scalars.append(
            [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64]
        )
        return graph.forward

    AutoModelForCausalLM.from_config(GptOssConfig(**_SHAPE, **_EXPERTS, head_dim=8)).save_pretrained(tmp_path)
    monkeypatch.setattr(layers, "compile_whole", partial(compile_whole, backend=backend))
    policy = load_packed_lm(tmp_path, torch.float32, kernel="sdpa", compiled=True)
    hidden_states(policy.backbone, torch.zeros(1, 8, dtype=torch.long), PackedRow.of([5, 3], padded=False), None)
    assert scalars == [[], []]


def test_layers_that_cannot_be_compiled_name_the_option(tmp_path, monkeypatch):
    save_small_model("dbrx", tmp_path)
    monkeypatch.setattr(layers, "compile_whole", partial(compile_whole, backend="eager"))
    policy = load_packed_lm(tmp_path, torch.float32, kernel="math", compiled=True)
    with pytest.raises(UserError, match=r"cannot be compiled .*Set learner\.compile_layers=false"):
        hidden_states(policy.backbone, torch.zeros(1, 8, dtype=torch.long), PackedRow.of([5, 3], padded=False), None)
