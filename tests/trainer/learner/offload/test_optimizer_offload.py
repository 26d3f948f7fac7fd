"""An optimizer whose state is on the host takes the same steps as AdamW."""

import copy
import weakref

import torch

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


class _CountedAdamW(OffloadedAdamW):
    """Counts the moments on the device, for which copies stand on a CPU."""

    most = fetched = 0

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copied = tensor.clone()
        self.alive = getattr(self, "alive", None) or weakref.WeakSet()
        self.alive.add(copied)
        self.fetched += 1
        self.most = max(self.most, sum(alive.numel() for alive in self.alive))
        return copied


def test_steps_in_parts_are_those_of_adamw():
    plain, parted = _parameters(), _parameters()
    _steps(torch.optim.AdamW(plain, **OPTIONS), plain, range(4))
    optimizer = _CountedAdamW(parted, part_bytes=2 * 4 * 3 * 9, **OPTIONS)
    _steps(optimizer, parted, range(4))
    assert all(torch.equal(*pair) for pair in zip(plain, parted, strict=True))
    # Each existing moment came to the device once a step, together with at most those of the next part.
    assert optimizer.fetched == 2 * sum((place + number) % 4 != 0 for place in range(5) for number in range(4)) - 2 * 5
    assert 2 * 3 * 9 < optimizer.most <= 2 * 2 * 3 * 9
    assert [len(group["params"]) for group in optimizer.param_groups] == [5]


def test_between_steps_moments_are_where_they_were():
    parameters = _parameters()
    optimizer = _CountedAdamW(parameters, **OPTIONS)
    _steps(optimizer, parameters, range(3))
    places = [state["exp_avg"].data_ptr() for state in optimizer.state.values()]
    _steps(optimizer, parameters, range(3, 6))
    assert [state["exp_avg"].data_ptr() for state in optimizer.state.values()] == places


def test_a_step_without_gradients_changes_nothing():
    parameters = _parameters()
    OffloadedAdamW(parameters, **OPTIONS).step()
    assert all(torch.equal(*pair) for pair in zip(parameters, _parameters(), strict=True))


def test_its_state_loads_into_adamw_and_back():
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
