"""On CUDA recurrent layers read packed rows by the kernels of flash-linear-attention, as plain torch computes them."""

import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.model.packed_lm import load_packed_lm
from agentloop.trainer.model.recurrent import ops, tuning
from tests.support import plain_recurrences as plain
from tests.support.small_models import save_small_model
from tests.trainer.model.recurrent.test_packed import FAMILIES, gradients

pytestmark = pytest.mark.gpu

_LENGTHS = [1, 5, 200, 64, 30]


def _starts() -> Tensor:
    return torch.tensor([0, *torch.tensor(_LENGTHS).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def _error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


@pytest.fixture(autouse=True, scope="module")
def compiling_in_parallel():
    tuning.compile_variants_in_parallel()


def test_variants_of_a_kernel_compile_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **_: threads.append(threading.get_ident()))
    q, k, v = (torch.randn(1, 128, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    g, beta = -torch.rand(1, 128, 2, device="cuda"), torch.rand(1, 128, 2, device="cuda", dtype=torch.bfloat16)
    ops.recurrence(q, k, v, g, beta, 1.0, torch.tensor([0, 128], dtype=torch.int32, device="cuda"), "delta")
    compiled_here = threads.count(threading.get_ident())
    assert len(set(threads)) > 2
    assert compiled_here < len(threads) / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ops.RECURRENCES)
def test_a_recurrence_and_its_gradients_are_those_of_plain_torch(kind: str, dtype: torch.dtype):
    torch.manual_seed(0)
    n, heads, dk, dv = sum(_LENGTHS), 3, 64, 64
    decay = (1, n, heads, dk) if kind == "kimi" else (1, n, heads)
    q, k = (F.normalize(torch.randn(1, n, heads, dk, device="cuda"), dim=-1).to(dtype) for _ in range(2))
    v = torch.randn(1, n, heads, dv, device="cuda", dtype=dtype)
    g = -torch.rand(decay, device="cuda")
    beta = None if kind == "decayed" else torch.rand(1, n, heads, device="cuda", dtype=dtype)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v, g, beta) if tensor is not None]
    wide = [None if tensor is None else tensor.float() for tensor in (q, k, v, g, beta)]
    want = plain.recurrence(*wide, dk**-0.5, _starts())  # type: ignore[arg-type]
    got, *_ = ops.recurrence(q, k, v, g, beta, dk**-0.5, _starts(), kind)
    bound = 5e-3 if dtype == torch.float32 else 2e-2
    assert _error(got, want) < bound
    weights = torch.randn_like(want)
    of_want = torch.autograd.grad((want * weights).sum(), inputs)
    of_got = torch.autograd.grad((got * weights).sum(), inputs)
    errors = [_error(a, b) for a, b in zip(of_got, of_want, strict=True)]
    assert max(errors) < 2 * bound, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_convolution_and_its_gradients_are_those_of_plain_torch(has_bias: bool, dtype: torch.dtype):
    torch.manual_seed(0)
    rows = torch.randn(1, sum(_LENGTHS), 48, device="cuda", dtype=dtype)
    weight = torch.randn(48, 4, device="cuda", dtype=dtype)
    bias = torch.randn(48, device="cuda", dtype=dtype) if has_bias else None
    inputs = [tensor.requires_grad_() for tensor in (rows, weight, bias) if tensor is not None]
    wide = [None if tensor is None else tensor.float() for tensor in (rows, weight, bias)]
    want = plain.convolution(*wide, "silu", _starts())  # type: ignore[arg-type]
    got = ops.short_convolution(rows, weight, bias, "silu", _starts())
    bound = 1e-5 if dtype == torch.float32 else 1e-2
    assert _error(got, want) < bound
    weights = torch.randn_like(want)
    of_want = torch.autograd.grad((want * weights).sum(), inputs)
    of_got = torch.autograd.grad((got * weights).sum(), inputs)
    errors = [_error(a, b) for a, b in zip(of_got, of_want, strict=True)]
    assert max(errors) < bound, errors


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_is_as_each_sequence_alone(family: str, tmp_path: Path):
    policy = load_packed_lm(save_small_model(family, tmp_path), torch.bfloat16, kernel="fa2", compiled=True)
    assert policy.recurrent == (True, False)
    packing_check.check(policy.to("cuda"))


@pytest.mark.parametrize("family", ["qwen3_5_text", "kimi_linear", "bamba"])
@pytest.mark.parametrize(
    ("checkpointing", "compiled"), [("off", False), ("off", True), ("selective", True), ("full", True)]
)
def test_gradients_are_those_of_padded_batches(family: str, compiled: bool, checkpointing: str, tmp_path: Path):
    save_small_model(family, tmp_path)
    want = gradients(load_packed_lm(tmp_path, torch.float32).to("cuda"))
    options = {"checkpointing": checkpointing, "compiled": compiled}
    got = gradients(load_packed_lm(tmp_path, torch.float32, kernel="math", **options).to("cuda"))  # type: ignore[arg-type]
    assert want.keys() == got.keys()
    errors = {name: _error(got[name], gradient) for name, gradient in want.items()}
    assert max(errors.values()) < 2e-2, errors
