"""Loss and gradients do not depend on ranks, micro-batches or order: relative differences below 1e-5 in float32."""

from pathlib import Path

import pytest
import torch

from agentloop.registry.named_objects import load_object

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[2] / "support" / "gradients_on_ranks.py"
_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tiny_qwen3) -> Path:
    return tiny_qwen3()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_loss_and_gradients_do_not_depend_on_the_plan(model: Path, tmp_path: Path, run_on_ranks, ranks: int):
    run, cases = load_object(f"{_SCRIPT}:run", "function"), load_object(f"{_SCRIPT}:CASES", "list")
    [(loss, gradients)] = run(model, [(False, 1000, "forward")])
    assert all(gradient.norm() > 1e-3 for gradient in gradients.values())
    if ranks == 1:
        results = run(model, cases)
    else:
        run_on_ranks(ranks, _SCRIPT, model, tmp_path / "results")
        results = torch.load(tmp_path / "results", weights_only=True)
    for case, (other_loss, other) in zip(cases, results, strict=True):
        assert abs(other_loss - loss) <= _TOLERANCE * abs(loss), case
        for name, gradient in gradients.items():
            difference = (other[name] - gradient).norm() / gradient.norm()
            assert difference <= _TOLERANCE, (case, name)
