"""An optimizer whose state is on the host takes the same steps."""

import copy
import weakref

import pytest
import torch

from agentloop.trainer.learner.offload import optimizer_offload as offload
from agentloop.trainer.learner.offload.optimizer_offload import OffloadedAdamW


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


class _Device:
    """Counts the moments that are there; on a CPU a copy stands for what is on the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.fetched = 0
        self._alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        monkeypatch.setattr(offload, "_copy", self._copy)

    def _copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copy = tensor.clone()
        self._alive.add(copy)
        self.fetched += 1
        self.most = max(self.most, sum(alive.numel() for alive in self._alive))
        return copy


def test_steps_in_parts_are_those_of_adamw(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offload, "_BYTES", 2 * 4 * 3 * 9)
    device = _Device(monkeypatch)
    plain, parted = _parameters(), _parameters()
    _steps(torch.optim.AdamW(plain, **OPTIONS), plain, range(4))
    optimizer = OffloadedAdamW(parted, **OPTIONS)
    _steps(optimizer, parted, range(4))
    assert all(torch.equal(*pair) for pair in zip(plain, parted, strict=True))
    # Each moment that there was already came to the device once a step, and with it at most the next part's.
    assert device.fetched == 2 * sum((place + number) % 4 != 0 for place in range(5) for number in range(4)) - 2 * 5
    assert 2 * 3 * 9 < device.most <= 2 * 2 * 3 * 9
    assert [len(group["params"]) for group in optimizer.param_groups] == [5]


def test_between_steps_moments_are_where_they_were(monkeypatch: pytest.MonkeyPatch):
    _Device(monkeypatch)
    parameters = _parameters()
    optimizer = OffloadedAdamW(parameters, **OPTIONS)
    _steps(optimizer, parameters, range(3))
    places = [state["exp_avg"].data_ptr() for state in optimizer.state.values()]
    _steps(optimizer, parameters, range(3, 6))
    assert [state["exp_avg"].data_ptr() for state in optimizer.state.values()] == places


def test_a_step_without_gradients_changes_nothing():
    parameters = _parameters()
    OffloadedAdamW(parameters, **OPTIONS).step()
    assert all(torch.equal(*pair) for pair in zip(parameters, _parameters(), strict=True))


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
