"""On CUDA the optimizer with its state on the host takes the steps of AdamW, with at most two parts on the device."""

import copy

import pytest
import torch

from agentloop.trainer.learner.offload.optimizer_offload import OffloadedAdamW

pytestmark = pytest.mark.gpu

_OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1, "fused": True}
_PART = 2**22


def _parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(200 + 7 * n, 1000, device="cuda")) for n in range(40)]


def _steps(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], numbers: range) -> None:
    for number in numbers:
        generator = torch.Generator("cuda").manual_seed(number)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, device="cuda")
        optimizer.step()


def test_steps_whose_copies_overlap_are_those_of_adamw():
    plain, parted = _parameters(), _parameters()
    reference, offloaded = torch.optim.AdamW(plain, **_OPTIONS), OffloadedAdamW(parted, part_bytes=_PART, **_OPTIONS)
    for optimizer, parameters in ((reference, plain), (offloaded, parted)):
        _steps(optimizer, parameters, range(20))
    for mine, theirs in zip(parted, plain, strict=True):
        assert torch.equal(mine, theirs)
        for name in ("exp_avg", "exp_avg_sq"):
            moment = offloaded.state[mine][name]
            assert moment.is_pinned()
            assert torch.equal(moment, reference.state[theirs][name].cpu())


def test_two_parts_of_the_state_are_on_the_device_at_most():
    parameters = _parameters()
    optimizer = OffloadedAdamW(parameters, part_bytes=_PART, **_OPTIONS)
    _steps(optimizer, parameters, range(2))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    assert torch.cuda.max_memory_allocated() - before <= 2 * _PART
    assert torch.cuda.memory_allocated() == before


def test_state_that_is_loaded_is_on_the_host_again():
    parameters = _parameters()
    first, second = (OffloadedAdamW(parameters, part_bytes=_PART, **_OPTIONS) for _ in range(2))
    _steps(first, parameters, range(1))
    before = torch.cuda.memory_allocated()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert torch.cuda.memory_allocated() - before < 2**16 * len(parameters)
    for parameter in parameters:
        assert second.state[parameter]["exp_avg"].is_pinned()
        assert torch.equal(second.state[parameter]["exp_avg"], first.state[parameter]["exp_avg"])
