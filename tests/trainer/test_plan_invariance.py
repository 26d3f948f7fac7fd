"""Loss and gradients do not depend on ranks, micro-batches or order: relative differences below 1e-5 in float32."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentloop.loading import load_object

_SCRIPT = Path(__file__).parent / "gradients_on_ranks.py"
_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tiny_qwen3) -> Path:
    return tiny_qwen3()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loss_and_gradients_do_not_depend_on_the_plan(model: Path, tmp_path: Path, ranks: int):
    run, cases = load_object(f"{_SCRIPT}:run", "function"), load_object(f"{_SCRIPT}:CASES", "list")
    [(loss, gradients)] = run(model, [(False, 1000, "forward")])
    assert all(gradient.norm() > 1e-3 for gradient in gradients.values())
    results = run(model, cases) if ranks == 1 else _on_ranks(ranks, model, tmp_path / "results")
    for case, (other_loss, other) in zip(cases, results, strict=True):
        assert abs(other_loss - loss) <= _TOLERANCE * abs(loss), case
        for name, gradient in gradients.items():
            difference = (other[name] - gradient).norm() / gradient.norm()
            assert difference <= _TOLERANCE, (case, name)


def _on_ranks(ranks: int, model: Path, out: Path) -> list[tuple[float, dict[str, torch.Tensor]]]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launch, str(_SCRIPT), str(model), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(out, weights_only=True)
