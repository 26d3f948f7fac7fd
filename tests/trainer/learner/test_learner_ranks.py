import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.registry.named_objects import load_object

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[2] / "support" / "learner_on_ranks.py"


@pytest.mark.parametrize("options", [[], ["gather_once"], ["lora"]])
def test_two_ranks_train_as_one(tiny_qwen3, tmp_path: Path, run_on_ranks, options: list[str]):
    model, two = tiny_qwen3(), tmp_path / "two"
    two.mkdir()
    run_on_ranks(2, _SCRIPT, model, two, *options)

    metrics, weights = load_object(f"{_SCRIPT}:train", "function")(model, tmp_path / "one", lora="lora" in options)
    for rank in range(2):
        other = torch.load(two / f"weights-{rank}.pt", weights_only=True)
        for name, tensor in weights.items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=2e-6)
        for got, want in zip(json.loads((two / f"metrics-{rank}.json").read_text()), metrics, strict=True):
            assert got.keys() == want.keys()
            for name, value in want.items():
                if not name.startswith(("seconds/", "tokens_per_second", "flops_per_second", "balance")):
                    torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5, msg=name)
    saved = AutoModelForCausalLM.from_pretrained(two / "hf")
    torch.testing.assert_close(dict(saved.named_parameters()), weights, rtol=1e-4, atol=2e-6)
