"""vLLM on CPUs: its corrected layers compute what transformers computes, and its cache has the size that is set."""

from importlib.resources import files
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from agentloop.engines.vllm.cpu import correct_rotary_embeddings, correct_routers
from agentloop.engines.vllm.launch import VllmLauncher
from agentloop.errors import UserError

pytestmark = pytest.mark.vllm


@pytest.fixture
def cache_bytes(monkeypatch):
    """Call with engine options: the memory that vLLM would use for keys and values."""
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(
        AsyncLLM, "from_engine_args", lambda engine_args, usage_context: engine_args.create_engine_config(usage_context)
    )
    model = str(files("agentloop.recipes.tiny") / "checkpoint")

    def found(**options):
        given = {"enforce_eager": True, **options}
        launcher = VllmLauncher(model, given, shares_gpu=False, sleeps=False, max_pixels=None)
        try:
            return launcher.launch().cache_config.kv_cache_memory_bytes
        finally:
            launcher.sockets.remove()

    return found


def test_the_cache_has_the_memory_that_is_asked_for(cache_bytes, monkeypatch):
    assert cache_bytes() == 2 << 30
    assert cache_bytes(kv_cache_memory_bytes=64 << 20) == 64 << 20
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert cache_bytes() == 3 << 30
    with pytest.raises(UserError, match="takes VLLM_CPU_KVCACHE_SPACE=3 from the environment"):
        cache_bytes(kv_cache_memory_bytes=64 << 20)


@pytest.mark.parametrize("neox", [True, False])
def test_queries_with_a_dimension_for_heads_are_rotated_as_flat_ones(neox):
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    with set_current_vllm_config(VllmConfig()):
        layer = RotaryEmbedding(32, 32, 64, 10000.0, neox, torch.float32)
    correct_rotary_embeddings(nn.Sequential(layer))
    positions, query, key = torch.arange(5), torch.randn(5, 4, 32), torch.randn(5, 2, 32)
    want = layer(positions, query.flatten(1).clone(), key.flatten(1).clone())
    got = layer(positions, query.clone(), key.clone())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.reshape(5, -1), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_bias_chooses_the_experts_but_does_not_change_their_weights(scores):
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

    bias = torch.tensor([0.0, 0.0, 5.0, 0.0])
    router = CPURouter(
        top_k=2,
        global_num_experts=4,
        renormalize=True,
        scoring_func=scores,
        routed_scaling_factor=2.0,
        e_score_correction_bias=bias,
    )
    model = nn.Module()
    model.layer = nn.Module()
    model.layer.router = router
    correct_routers(model)
    logits = torch.tensor([[2.0, 1.0, -1.0, 0.0]])
    weights, experts = router.select_experts(torch.zeros(1, 8), logits)
    assert sorted(experts[0].tolist()) == [0, 2]
    each = torch.softmax(logits[0], -1) if scores == "softmax" else logits[0].sigmoid()
    want = 2 * each[[0, 2]] / each[[0, 2]].sum()
    torch.testing.assert_close(weights[0][experts[0].argsort()], want)


def test_other_routers_stay_as_they_are():
    model = nn.Module()
    model.router = router = SimpleNamespace(custom_routing_function=None, e_score_correction_bias=torch.zeros(4))
    correct_routers(model)
    assert router.custom_routing_function is None
