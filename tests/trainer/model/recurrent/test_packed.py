"""Recurrent layers of transformers read packed rows by the learner's ops; the ops themselves are tested on CUDA."""

import importlib.metadata
from functools import partial
from pathlib import Path

import pytest
import torch

import tests.support.plain_recurrences  # noqa: F401
from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.model import layers
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.compiling import compile_whole
from agentloop.trainer.model.packed_lm import PackedCausalLM, load_packed_lm
from agentloop.trainer.model.recurrent import packed
from tests.support.small_models import save_small_model

FAMILIES = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "olmo_hybrid",
    "kimi_linear",
    "bamba",
    "nemotron_h",
    "granitemoehybrid",
    "falcon_h1",
)


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch):
    """Replace the package by plain torch."""
    monkeypatch.setattr(packed, "obstacle", lambda: None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_is_as_each_sequence_alone(family: str, tmp_path: Path):
    policy = load_packed_lm(save_small_model(family, tmp_path), torch.float32, kernel="math")
    assert policy.recurrent == (True, False)
    packing_check.check(policy)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kinds"), [("qwen3_5_text", 2), ("falcon_h1", 1)])
def test_one_compilation_serves_all_layers_of_a_kind(
    family: str, kinds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layers, "compile_whole", partial(compile_whole, backend="eager"))
    save_small_model(family, tmp_path, num_hidden_layers=16)
    policy = load_packed_lm(tmp_path, torch.float32, kernel="math", compiled=True)
    torch._dynamo.utils.counters.clear()
    gradients(policy)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == kinds


def test_layers_without_a_kernel_read_padded_batches_and_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    policy = load_packed_lm(save_small_model("lfm2", tmp_path), torch.float32, kernel="math")
    assert policy.recurrent == (True, True)
    assert "Lfm2ShortConv read sequences as padded batches" in caplog.text
    packing_check.check(policy)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.undo()
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "fla-core":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(packed, "version", version)
    policy = load_packed_lm(save_small_model("qwen3_5_text", tmp_path), torch.float32, kernel="math")
    assert policy.recurrent == (True, True)
    assert "the package fla-core is not installed: pip install 'agentloop[fla]'" in caplog.text


def gradients(policy: PackedCausalLM) -> dict[str, torch.Tensor]:
    device = next(policy.parameters()).device
    row = PackedRow.of([5, 70, 9], device, padded=policy.recurrent.padded)
    ids = torch.arange(84, device=device)[None] % 120 + 3
    places = torch.arange(83, device=device)
    _, logprobs, _ = policy(ids, row, places, ids[0, 1:], 1.0)
    logprobs.sum().backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "checkpointing", "compiled"),
    [
        ("bamba", "off", False),
        ("qwen3_5_text", "off", False),
        ("qwen3_5_text", "full", False),
        ("qwen3_5_text", "selective", True),
    ],
)
def test_gradients_are_those_of_padded_batches(family: str, checkpointing: str, compiled: bool, tmp_path: Path):
    save_small_model(family, tmp_path)
    want = gradients(load_packed_lm(tmp_path, torch.float32))
    options = {"checkpointing": checkpointing, "compiled": compiled}
    got = gradients(load_packed_lm(tmp_path, torch.float32, kernel="math", **options))  # type: ignore[arg-type]
    assert want.keys() == got.keys()
    errors = {name: float((got[name] - gradient).norm() / gradient.norm()) for name, gradient in want.items()}
    assert max(errors.values()) < 5e-3, errors
