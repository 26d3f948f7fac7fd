"""Two ranks have the loss and gradients of one rank for every registered objective."""

from pathlib import Path

import pytest
import torch

from agentloop.registry.named_objects import load_object

pytestmark = pytest.mark.slow

_SCRIPT = Path(__file__).parents[2] / "support" / "objectives_on_ranks.py"
_TOLERANCE = 2e-5


def test_two_ranks_have_the_gradients_of_one_rank_for_every_objective(tiny_qwen3, tmp_path: Path, run_on_ranks):
    model = tiny_qwen3()
    run, make_samples = load_object(f"{_SCRIPT}:run", "function"), load_object(f"{_SCRIPT}:samples", "function")
    samples = make_samples(model)
    torch.save(samples, tmp_path / "samples")
    run_on_ranks(2, _SCRIPT, model, tmp_path / "samples", tmp_path / "results")
    expected = run(model, samples, {"token_budget": 2000, "gather_once": False})
    plain = expected["loss ppo"][1]
    for way, found in torch.load(tmp_path / "results", weights_only=True).items():
        assert found.keys() == expected.keys()
        for case, (loss, gradients) in expected.items():
            other_loss, other = found[case]
            assert abs(other_loss - loss) <= _TOLERANCE * abs(loss), (way, case)
            assert other.keys() == gradients.keys(), (way, case)
            for name, gradient in gradients.items():
                assert (other[name] - gradient).norm() <= _TOLERANCE * gradient.norm(), (way, case, name)
    for case, (_, gradients) in expected.items():  # the cases differ from each other
        is_plain = gradients.keys() == plain.keys() and all(
            torch.equal(gradients[name], gradient) for name, gradient in plain.items()
        )
        assert is_plain == (case in ("loss ppo", "ppo, token_mean")), case
        assert sum(gradient.norm() for gradient in gradients.values()) > 1e-4, case
