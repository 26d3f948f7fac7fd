"""The names and tensors that vLLM gets are those of the model's checkpoint, whatever transformers calls them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentloop.weights.checkpoint_names import CheckpointNames
from agentloop.weights.files import checkpoint_shapes
from tests.support.small_models import save_small_model


@pytest.mark.parametrize(
    "family",
    ["qwen3", "qwen3_moe", "qwen3_5_moe_text", "gpt_oss", "glm4_moe", "mixtral", "lfm2_moe", "minimax_m2", "jamba"],
)
def test_weights_become_those_of_the_checkpoint(family: str, tmp_path: Path):
    save_small_model(family, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    names = CheckpointNames(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")
    found = dict(names.converted(model.named_parameters()))
    found.pop("lm_head.weight", None)
    assert found.keys() == expected.keys() - {"lm_head.weight"}
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    shapes = names.shapes({name: tuple(weight.shape) for name, weight in model.named_parameters()})
    assert shapes.items() >= checkpoint_shapes(tmp_path).items() - {("lm_head.weight", (128, 32))}
