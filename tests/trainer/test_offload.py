"""An optimizer whose state is on the host takes the same steps."""

import copy

import pytest
import torch

from agentloop.trainer.backends import offload
from agentloop.trainer.backends.offload import OffloadedAdamW


def _parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(n, 3, generator=generator)) for n in (5, 1, 7, 2, 4)]


def _steps(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        for place, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = None if (place + number) % 4 == 0 else gradient
        optimizer.step()


OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1, "fused": True}


def test_steps_in_parts_are_those_of_adamw(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offload, "_BYTES", 100)
    plain, parted = _parameters(), _parameters()
    _steps(torch.optim.AdamW(plain, **OPTIONS), plain, range(4))
    optimizer = OffloadedAdamW(parted, **OPTIONS)
    sizes: list[int] = []
    monkeypatch.setattr(optimizer, "_move", lambda some, to_host: sizes.append(len(some)))
    _steps(optimizer, parted, range(4))
    assert all(torch.equal(*pair) for pair in zip(plain, parted, strict=True))
    num_gradients = sum((place + number) % 4 != 0 for place in range(5) for number in range(4))
    assert sum(sizes) == 2 * num_gradients  # to the device and back
    assert len(sizes) > 2 * 4  # more than one part a step
    assert [len(group["params"]) for group in optimizer.param_groups] == [5]


def test_its_state_is_read_and_written_as_that_of_adamw():
    plain, parted = _parameters(), _parameters()
    before = torch.optim.AdamW(plain, **OPTIONS)
    _steps(before, plain, range(2))
    with torch.no_grad():
        for mine, theirs in zip(parted, plain, strict=True):
            mine.copy_(theirs)
    after = OffloadedAdamW(parted, **OPTIONS)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for optimizer, parameters in ((before, plain), (after, parted)):
        _steps(optimizer, parameters, range(2, 4))
    assert all(torch.equal(*pair) for pair in zip(plain, parted, strict=True))
