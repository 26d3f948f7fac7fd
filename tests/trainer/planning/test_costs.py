import numpy as np
import pytest
from transformers import Gemma3TextConfig, Qwen2_5_VLConfig, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, Qwen3VLConfig

from agentloop.trainer.planning import CostModel, ModelFlops
from agentloop.trainer.planning.costs import Measured

_SHAPE = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 3,
    "vocab_size": 10,
}
_ATTENTION = 8 * 12 + 2 * 8 * 6 + 12 * 8  # q; k and v; o
_WEIGHTS = 2 * (_ATTENTION + 3 * 8 * 16) + 8 * 10  # and mlp; head


def test_cost_of_a_small_model_by_hand():
    config = Qwen3Config(**_SHAPE)
    cost = CostModel.from_config(config)
    assert cost.per_token == 6 * _WEIGHTS
    assert cost.per_token_pair == 3 * 2 * (2 * 2 * 12) / 2  # scores and values of half the pairs
    assert cost(10) == 60 * _WEIGHTS + 100 * cost.per_token_pair
    assert CostModel.from_config(config, head_fraction=0.0).per_token == 6 * (_WEIGHTS - 80)


def test_flops_count_the_head_only_for_its_tokens():
    flops = ModelFlops.from_config(Qwen3Config(**_SHAPE))
    assert flops.forward(10, 3) == 2 * 10 * (_WEIGHTS - 80) + 2 * 3 * 80 + 50 * 2 * 4 * 12


def test_flops_match_the_published_parameter_count():
    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
    )
    flops = ModelFlops.from_config(config)
    assert flops.per_token == pytest.approx(2 * 0.44e9, rel=0.01)  # "0.44B non-embedding parameters"
    cost = CostModel.from_config(config)
    assert cost.per_token / cost.per_token_pair == pytest.approx(10_400, rel=0.01)


def test_only_the_experts_that_a_token_passes_count():
    experts = {"num_experts_per_tok": 2, "num_experts": 6, "moe_intermediate_size": 5}
    config = Qwen3MoeConfig(**_SHAPE, **experts, mlp_only_layers=[0])
    moe = 3 * 8 * 5 * 2 + 8 * 6  # two experts, and the router
    assert ModelFlops.from_config(config).per_token == 2 * (2 * _ATTENTION + 3 * 8 * 16 + moe)
    shared = Qwen2MoeConfig(**_SHAPE, **experts, shared_expert_intermediate_size=7, decoder_sparse_step=2)
    assert ModelFlops.from_config(shared).per_token == 2 * (2 * _ATTENTION + 3 * 8 * 16 + moe + 3 * 8 * 7)


def test_a_sliding_window_bounds_the_pairs():
    config = Gemma3TextConfig(**_SHAPE, sliding_window=4, layer_types=["sliding_attention", "full_attention"])
    flops = ModelFlops.from_config(config)
    linear = 10 * flops.per_token
    # Full attention has half of 100 pairs; the window has half of 16 for the first 4 tokens and 4 for each other one.
    assert flops.forward(10, 0) == linear + (50 + 8 + 24) * 4 * 12
    cost = CostModel.from_config(config, head_fraction=0.0)
    assert cost(10) == pytest.approx(3 * flops.forward(10, 0))
    # Below the window length both layers cost the same.
    assert cost(3) == pytest.approx(3 * (3 * flops.per_token + 2 * 4.5 * 4 * 12))
    unused = Qwen3Config(**_SHAPE, sliding_window=4, use_sliding_window=False)
    assert ModelFlops.from_config(unused).window == 0


def test_vision_tower_of_qwen3_vl_by_hand():
    vision = {
        "depth": 3,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_heads": 2,
        "patch_size": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "out_hidden_size": 6,
        "deepstack_visual_indexes": [1],
    }
    flops = ModelFlops.from_config(Qwen3VLConfig(text_config=_SHAPE, vision_config=vision))
    assert flops.vision is not None
    layer = 4 * 64 + 2 * 8 * 12
    mergers = 2 * (32 * 32 + 32 * 6) / 4  # the last merger and that of the deep stack, for 4 patches each
    assert flops.vision.per_patch == 2 * (3 * 2 * 2 * 2 * 8 + 3 * layer + mergers)
    assert flops.vision.forward([10, 20]) == 30 * flops.vision.per_patch + (100 + 400) * 4 * 3 * 8
    cost = CostModel.from_config(Qwen3VLConfig(text_config=_SHAPE, vision_config=vision))
    assert cost(50, [10, 20]) - cost(50) == pytest.approx(3 * flops.vision.forward([10, 20]))


def test_the_vision_tower_of_qwen2_5_vl_has_windows():
    vision = {
        "depth": 4,
        "hidden_size": 8,
        "intermediate_size": 12,
        "patch_size": 2,
        "window_size": 8,
        "fullatt_block_indexes": [3],
        "hidden_act": "silu",
        "out_hidden_size": 6,
    }
    flops = ModelFlops.from_config(Qwen2_5_VLConfig(text_config=_SHAPE, vision_config=vision)).vision
    assert flops is not None
    layer = 4 * 64 + 3 * 8 * 12
    assert flops.per_patch == 2 * (3 * 2 * 2 * 2 * 8 + 4 * layer + (32 * 32 + 32 * 6) / 4)
    assert flops.window == 16
    assert flops.forward([64]) == 64 * flops.per_patch + 64 * 64 * 4 * 8 + 64 * 16 * 4 * 3 * 8


def _measured(rng: np.random.Generator, count: int) -> tuple[list[list[int]], np.ndarray]:
    """Return micro-batches and their seconds, 2e-6 * n + 1e-10 * n^2 + 0.01 with 1% of noise."""
    rows = [rng.lognormal(8, 1, rng.integers(1, 12)).clip(16, 60_000).astype(int).tolist() for _ in range(count)]
    seconds = [2e-6 * sum(row) + 1e-10 * sum(n * n for n in row) + 0.01 for row in rows]
    return rows, np.array(seconds) * rng.normal(1, 0.01, count)


def _fitted(cost: CostModel, rows: list[list[int]], seconds: list[float]) -> CostModel:
    found = [Measured(sum(row), sum(map(cost, row)) - sum(row) * cost.per_token) for row in rows]
    return cost.fitted(found, seconds)


def test_measured_times_correct_the_coefficients():
    rows, seconds = _measured(np.random.default_rng(0), 60)
    seconds[3] *= 40  # the first call of a compiled kernel
    cost = _fitted(CostModel(1e9, 3e5, per_micro_batch=1e11), rows, seconds.tolist())
    assert cost.per_token == pytest.approx(2e-6, rel=0.03)
    assert cost.per_token_pair == pytest.approx(1e-10, rel=0.03)
    assert cost.per_micro_batch == pytest.approx(0.01, rel=0.2)
    again = _fitted(cost, rows, seconds.tolist())
    assert again.per_token == pytest.approx(cost.per_token, rel=0.01)


def test_terms_that_measurements_do_not_tell_apart_keep_their_ratio():
    before = CostModel(1e9, 3e5)
    cost = _fitted(before, [[1000]] * 5, [0.5] * 5)
    assert cost(1000) == pytest.approx(0.5, rel=0.01)
    assert cost.per_token / cost.per_token_pair == pytest.approx(1e9 / 3e5, rel=0.01)


def test_no_coefficient_is_negative():
    # A plain fit to times that fall with the length has a negative coefficient.
    cost = _fitted(CostModel(1.0, 1e-3, per_micro_batch=100.0), [[100], [200], [400], [800]], [1.0, 0.9, 0.8, 0.7])
    assert min(cost.per_token, cost.per_token_pair, cost.per_micro_batch) >= 0
    assert cost(100) >= 0
    with pytest.raises(ValueError, match="at least one micro-batch"):
        CostModel(1.0, 1.0).fitted([], [])
