import importlib.util

import pytest
import torch

from agentloop.errors import UserError
from agentloop.trainer.model.attention.choice import choose

_CPU, _CUDA = torch.device("cpu"), torch.device("cuda")


def _machine(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has_fa4: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_fa4 else None)


@pytest.mark.parametrize(
    ("capability", "has_fa4", "dtype", "kernel"),
    [
        ((9, 0), True, torch.bfloat16, "fa4"),
        ((9, 0), False, torch.bfloat16, "fa2"),
        ((8, 0), True, torch.float16, "fa2"),
        ((7, 5), True, torch.float16, "sdpa"),
        ((9, 0), True, torch.float32, "sdpa"),
    ],
)
def test_auto_selects_the_fastest_available_kernel(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has_fa4: bool, dtype: torch.dtype, kernel: str
):
    _machine(monkeypatch, capability, has_fa4)
    assert choose("auto", _CUDA, dtype) == kernel
    assert choose("auto", _CPU, dtype) == "sdpa"


@pytest.mark.parametrize(
    ("name", "device", "dtype", "capability", "message"),
    [
        ("fa2", _CPU, torch.bfloat16, (9, 0), "the learner is on cpu"),
        ("fa2", _CUDA, torch.float32, (9, 0), "set learner.compute_dtype=bfloat16"),
        ("fa4", _CUDA, torch.bfloat16, (8, 6), "this device has 8.6"),
        ("fa4", _CUDA, torch.bfloat16, (9, 0), "pip install flash-attn-4"),
    ],
)
def test_unavailable_kernels_raise_user_error_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, name, device, dtype, capability, message: str
):
    _machine(monkeypatch, capability, has_fa4=False)
    with pytest.raises(UserError, match=message):
        choose(name, device, dtype)
