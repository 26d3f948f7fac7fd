import torch

from agentloop.trainer.model.compiling import compile_whole


def run(layer, hidden):
    return layer(hidden)


def test_many_models_compile_in_one_process():
    """Each twice, with gradients and without; torch gives up at the ninth time for the same code."""
    for width in range(2, 8):
        layer = torch.nn.Linear(width, 3)
        forward = compile_whole(run, backend="eager")
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                for length in (4, 5):
                    hidden = torch.randn(length, width)
                    assert torch.equal(forward(layer, hidden), layer(hidden))
