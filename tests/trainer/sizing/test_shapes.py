"""The built-in shapes have the published sizes, and suffice for plans of the recipes."""

from importlib.resources import files

import pytest

from agentloop.api.recipe import built_in_recipes
from agentloop.cli import main
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.shapes import shape_of, shapes

BILLIONS = {
    "HuggingFaceTB/SmolLM2-135M": 0.1345,
    "deepseek-ai/DeepSeek-V3": 671,
    "meta-llama/Llama-3.1-405B": 405.85,
    "meta-llama/Llama-3.1-70B": 70.55,
    "meta-llama/Llama-3.1-8B": 8.03,
    "meta-llama/Llama-3.2-1B": 1.236,
    "meta-llama/Llama-3.2-3B": 3.213,
    "openai/gpt-oss-120b": 116.83,
    "openai/gpt-oss-20b": 20.91,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.544,
    "Qwen/Qwen2.5-3B-Instruct": 3.086,
    "Qwen/Qwen2.5-7B": 7.616,
    "Qwen/Qwen2.5-7B-Instruct": 7.616,
    "Qwen/Qwen2.5-14B-Instruct": 14.77,
    "Qwen/Qwen2.5-32B-Instruct": 32.76,
    "Qwen/Qwen2.5-72B-Instruct": 72.71,
    "Qwen/Qwen2.5-VL-7B-Instruct": 7.616,
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.721,
    "Qwen/Qwen3-4B": 4.022,
    "Qwen/Qwen3-4B-Instruct-2507": 4.022,
    "Qwen/Qwen3-8B": 8.191,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen3-30B-A3B": 30.53,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": 30.53,
    "Qwen/Qwen3-235B-A22B": 235.09,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480.15,
    "Qwen/Qwen3.5-27B": 27,
    "Qwen/Qwen3.5-35B-A3B": 35,
    "Qwen/Qwen3.5-122B-A10B": 122,
    "Qwen/Qwen3.5-397B-A17B": 397,
    "zai-org/GLM-4.5": 355,
    "zai-org/GLM-4.5-Air": 106,
    "zai-org/GLM-4.6": 355,
    "zai-org/GLM-4.7-Flash": 30,
    "zai-org/GLM-5": 744,
}
"""Published numbers of parameters, of the language model alone. Other names in `shapes.json` have one of these."""


def test_the_table_has_every_shape():
    assert {id(shapes()[name]) for name in BILLIONS} == {id(config) for config in shapes().values()}
    assert len(files("agentloop.trainer.sizing").joinpath("shapes.json").read_bytes()) < 100_000


@pytest.mark.parametrize("name", BILLIONS)
def test_shape_has_the_published_number_of_parameters(name):
    config = shape_of(name)
    shape = ModelShape.from_config(config)
    assert shape.parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)
    assert config.get_text_config().max_position_embeddings >= 8192
    active = shape.dense_parameters + shape.expert_parameters * shape.experts_per_token / max(shape.num_experts, 1)
    assert ModelFlops.from_config(config).per_token == pytest.approx(2 * active, rel=0.15)


def test_latent_attention_and_linear_attention_cache_less():
    deepseek = ModelShape.from_config(shape_of("deepseek-ai/DeepSeek-V3"))
    qwen = ModelShape.from_config(shape_of("Qwen/Qwen3.5-27B"))
    assert deepseek.kv_bytes_per_token == 2 * 61 * (512 + 64)
    assert (qwen.layers, qwen.linear_layers) == (64, 48)
    assert qwen.kv_bytes_per_token == 2 * 2 * 16 * 4 * 256


@pytest.mark.parametrize("name", sorted(set(built_in_recipes()) - {"chain"}))
def test_full_scale_recipes_are_planned_without_weights_and_network(name, monkeypatch, capsys):
    """The model of the recipe `chain` is made from scratch by its own command."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as ended:
        main(["plan", name, "--gpus", "8", "--top", "1"])
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    if name != "tiny":  # its model is in the folder
        assert "its built-in shape is used" in " ".join(shown.out.split())
    assert "parameters on 8 x H200" in " ".join(shown.out.split())
