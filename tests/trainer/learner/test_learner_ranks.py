import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.registry.named_objects import load_object

_SCRIPT = Path(__file__).parents[2] / "support" / "learner_on_ranks.py"


@pytest.mark.parametrize("options", [[], ["gather_once"], ["lora"]])
def test_two_ranks_train_as_one(tiny_qwen3, tmp_path: Path, run_on_ranks, options: list[str]):
    model, two = tiny_qwen3(), tmp_path / "two"
    two.mkdir()
    (_torchrun if not options else run_on_ranks)(2, _SCRIPT, model, two, *options)

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


def _torchrun(ranks: int, script: Path, model: Path, out: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    done = subprocess.run(
        [*command, str(model), str(out)],
        # TMPDIR: it leaves a folder behind.
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(out)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
