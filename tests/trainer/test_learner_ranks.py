import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentloop.loading import load_object

_SCRIPT = Path(__file__).parent / "learner_on_ranks.py"


@pytest.mark.parametrize("options", [[], ["gather_once"]])
def test_two_ranks_train_as_one(tmp_path: Path, options: list[str]):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    two = tmp_path / "two"
    two.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(_SCRIPT)]
    done = subprocess.run(
        [*launch, str(tmp_path / "model"), str(two), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]

    metrics, weights = load_object(f"{_SCRIPT}:train", "function")(tmp_path / "model", tmp_path / "one")
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
