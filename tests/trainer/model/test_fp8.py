"""Products in FP8: the matrices that they multiply, which layers use them, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model import fp8
from agentloop.trainer.model.lora import LoraLinear
from agentloop.trainer.model.packed_lm import load_packed_lm
from tests.support.small_models import save_small_model
from tests.support.tiny import random_batch, save_small_qwen3


def rounded(matrix: torch.Tensor, dtype: torch.dtype, *, by_row: bool) -> torch.Tensor:
    """Return the values that FP8 can represent, with the largest of a row or of the matrix as the largest of FP8."""
    matrix = matrix.float()
    largest = matrix.abs().amax(1, keepdim=True) if by_row else matrix.abs().max()
    scale = (largest / torch.finfo(dtype).max).clamp(min=1e-12)
    return ((matrix * (1 / scale)).to(dtype).float() * scale).double()


def of_rounded(hidden, weight, grad, *, by_row):
    """Return the product and its gradients in float64, from matrices that are rounded as the hardware needs them."""
    e4m3 = torch.float8_e4m3fn
    wide = e4m3 if by_row else torch.float8_e5m2
    if by_row:
        columns = [rounded(each.t(), e4m3, by_row=True).t() for each in (hidden, weight, grad)]
    else:
        columns = [rounded(hidden, e4m3, by_row=False), rounded(weight, e4m3, by_row=False)]
        columns.append(rounded(grad, wide, by_row=False))
    out = rounded(hidden, e4m3, by_row=by_row) @ rounded(weight, e4m3, by_row=by_row).t()
    of_hidden = rounded(grad, wide, by_row=by_row) @ columns[1]
    return out, of_hidden, columns[2].t() @ columns[0]


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(1, 70),
    shape=st.sampled_from([(16, 16), (48, 32), (16, 64)]),
    by_row=st.booleans(),
    size=st.sampled_from([1e-4, 1.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_products_and_gradients_are_those_of_rounded_matrices(tokens, shape, by_row, size, seed):
    torch.manual_seed(seed)
    hidden = (torch.randn(tokens, shape[1]) * size).bfloat16().requires_grad_()
    weight = torch.randn(shape).bfloat16().requires_grad_()
    grad = (torch.randn(tokens, shape[0]) / size).bfloat16()
    out = fp8.linear(hidden, weight, None, by_row=by_row)
    found = [out, *torch.autograd.grad(out, (hidden, weight), grad)]
    expected = of_rounded(hidden.detach(), weight.detach(), grad, by_row=by_row)
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-5 * float(want.abs().max()))


def test_rows_of_zeros_and_a_bias():
    hidden, weight, bias = torch.zeros(5, 16).bfloat16(), torch.randn(32, 16).bfloat16(), torch.randn(32).bfloat16()
    for by_row in (False, True):
        assert torch.equal(fp8.linear(hidden, weight, bias, by_row=by_row), bias.expand(5, 32))


def test_checks_in_float32_use_no_fp8():
    hidden, weight = torch.randn(2, 3, 16), torch.randn(32, 16)
    assert torch.equal(fp8.linear(hidden, weight, None, by_row=True), torch.nn.functional.linear(hidden, weight))


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_one_graph_serves_all_lengths(scales: str):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def two_layers(hidden, weight):
        by_row = scales == "row"
        between = fp8.linear(hidden, weight, None, by_row=by_row)
        return fp8.linear(between, weight.t().contiguous(), None, by_row=by_row)

    compiled = torch.compile(two_layers, dynamic=True, fullgraph=True, backend="aot_eager")
    weight = torch.randn(48, 32).bfloat16().requires_grad_()
    for tokens in (37, 64, 50):
        hidden = torch.randn(1, tokens, 32).bfloat16().requires_grad_()
        found = [torch.autograd.grad(f(hidden, weight).sum(), (hidden, weight)) for f in (two_layers, compiled)]
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def learner_of(model: Path, **options: object) -> FsdpLearner:
    settings = {"device": "cpu", "compute_dtype": "bfloat16", "lr": 1e-3} | options
    return FsdpLearner(LearnerConfig(model=str(model), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("scales", ["tensor", "row"])
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_learner_with_fp8_learns_nearly_what_one_without_does(tmp_path: Path, scales: str, lora: dict | None):
    model = save_small_qwen3(tmp_path)
    batch = random_batch(6, lengths=(4, 60), vocab=512, logprob=-6.2)
    want = learner_of(model, lora=lora).step(batch)
    learner = learner_of(model, lora=lora, fp8=scales)
    got = learner.step(batch)
    assert got["loss"] != want["loss"]
    assert got["loss"] == pytest.approx(want["loss"], abs=0.03)
    assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=0.1)
    assert {weight.dtype for _, weight in learner.weights()} == {torch.bfloat16}


def test_routers_experts_and_the_head_stay_in_bfloat16(tmp_path: Path):
    policy = load_packed_lm(save_small_model("qwen3_moe", tmp_path), torch.bfloat16)
    fp8.convert(policy.model, policy.layers(), "row")
    converted = {n.rpartition(".")[2] for n, m in policy.model.named_modules() if isinstance(m, fp8.Fp8Linear)}
    plain = {n.rpartition(".")[2] for n, m in policy.model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert converted == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert plain == {"lm_head"}


def test_layers_with_adapters_multiply_their_frozen_part_in_fp8(tmp_path: Path):
    learner = learner_of(save_small_qwen3(tmp_path), lora={"rank": 4, "targets": ["q_proj"]}, fp8="row")
    kinds = {n.rpartition(".")[2]: m for n, m in learner.policy.model.model.layers.named_modules()}
    assert isinstance(kinds["q_proj"], LoraLinear)
    assert kinds["q_proj"].product is not torch.nn.functional.linear
    assert isinstance(kinds["down_proj"], fp8.Fp8Linear)


def test_what_fp8_cannot_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = save_small_qwen3(tmp_path / "model")
    with pytest.raises(ValueError, match=r"compute_dtype is float32.*set learner\.compute_dtype=bfloat16"):
        LearnerConfig(model=str(model), fp8="row")
    with pytest.raises(ValueError, match="only fsdp has fp8"):
        LearnerConfig(model=str(model), fp8="row", backend="megatron")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    with pytest.raises(UserError, match=r"A100 does not multiply in FP8.*set learner\.fp8=off"):
        fp8.check(torch.device("cuda"))
    odd = torch.nn.ModuleList([torch.nn.Linear(10, 10)])
    with pytest.raises(UserError, match=r"multiples of 16.*Set learner\.fp8=off"):
        fp8.convert(odd, list(odd), "row")
