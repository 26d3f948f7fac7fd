import pytest
import torch

from agentloop.trainer.model.compiling import compile_whole

pytestmark = pytest.mark.slow


def run(layer, hidden):
    return layer(hidden)


def test_many_models_compile_in_one_process():
    """Run each model with and without gradients; torch stops compiling the same code at the ninth time."""
    for width in range(2, 8):
        layer = torch.nn.Linear(width, 3)
        forward = compile_whole(run, backend="eager")
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                for length in (4, 5):
                    hidden = torch.randn(length, width)
                    assert torch.equal(forward(layer, hidden), layer(hidden))
