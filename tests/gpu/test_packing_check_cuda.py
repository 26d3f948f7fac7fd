"""On CUDA the check at load runs in float32 whatever the model has, and leaves no trace."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agentloop.errors import UserError
from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.model.packed_lm import load_packed_lm
from tests.support.small_models import save_small_model
from tests.support.tiny import save_small_qwen3

pytestmark = pytest.mark.gpu


@pytest.fixture
def tf32() -> Iterator[None]:
    """Allow TF32, whose flag is not an attribute that monkeypatch can restore."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_passes_and_nothing_of_it_changes(tmp_path: Path, dtype: torch.dtype, tf32: None):
    policy = load_packed_lm(save_small_qwen3(tmp_path), dtype, kernel="fa2", compiled=True).to("cuda")
    before, random = {n: p.clone() for n, p in policy.named_parameters()}, torch.cuda.get_rng_state()
    packing_check.check(policy, shares_prefixes=True)
    assert all(torch.equal(p, before[n]) and p.dtype == dtype for n, p in policy.named_parameters())
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_text", "bamba", "lfm2", "gpt_oss", "gemma2", "llama4_text"])
def test_hybrids_sinks_and_soft_caps_are_exact(tmp_path: Path, dtype: torch.dtype, family: str):
    policy = load_packed_lm(save_small_model(family, tmp_path), dtype, kernel="fa2", compiled=True).to("cuda")
    packing_check.check(policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_that_differs_is_named(tmp_path: Path, dtype: torch.dtype):
    policy = load_packed_lm(save_small_model("phimoe", tmp_path), dtype, kernel="fa2", compiled=True).to("cuda")
    with pytest.raises(UserError, match="PhimoeAttention"):
        packing_check.check(policy)
