"""Experts on CUDA: grouped products in bfloat16, and router replay in compiled layers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.packed_lm import load_packed_lm
from tests.support.small_models import save_small_model

pytestmark = pytest.mark.gpu

_IDS = torch.arange(3, 40)[None]


def _plain(folder: Path, implementation: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation=implementation)
    model = model.to("cuda")
    logits = model(input_ids=_IDS.to("cuda"), use_cache=False).logits[0].float()
    logits.log_softmax(-1)[:, 5].mean().backward()
    return logits.detach(), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def test_grouped_products_are_those_of_single_experts(tmp_path: Path):
    folder = save_small_model("qwen3_moe", tmp_path)
    logits, gradients = _plain(folder, "grouped_mm")
    expected, expected_gradients = _plain(folder, "eager")
    assert (logits - expected).abs().mean() < 0.02 * expected.abs().mean()
    for name, gradient in gradients.items():
        similarity = torch.nn.functional.cosine_similarity(
            gradient.flatten(), expected_gradients[name].flatten(), dim=0
        )
        assert similarity > 0.98, name


@pytest.mark.parametrize("checkpointing", ["off", "selective", "full"])
def test_compiled_layers_use_the_experts_of_the_row(tmp_path: Path, checkpointing: str):
    folder = save_small_model("qwen3_moe", tmp_path)
    given = (torch.arange(37)[None, :, None] + torch.arange(4)[:, None, None] + torch.arange(2)) % 4
    row = replace(PackedRow.of([20, 17], "cuda", padded=False), routed=given.to("cuda", torch.int16))
    ids, predicting = _IDS.to("cuda"), torch.arange(5, 30, device="cuda")
    found = []
    for compiled in (False, True):
        options = {"kernel": "fa2", "checkpointing": checkpointing, "compiled": compiled}
        policy = load_packed_lm(folder, torch.bfloat16, **options).to("cuda")
        _, logprobs, _ = policy(ids, row, predicting, ids[0, 6:31], 1.0)
        logprobs.mean().backward()
        assert policy.routing.load is not None
        assert policy.routing.load[0, :4].tolist() == torch.bincount(given[0].flatten()).tolist()
        found.append(logprobs.detach())
    torch.testing.assert_close(found[0], found[1], atol=0.1, rtol=0)
