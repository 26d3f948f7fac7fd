import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.checks import packing_check
from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention.shared_prefix import SharedPrefixes
from agentloop.trainer.model.packed_lm import load_packed_lm
from agentloop.trainer.model.recurrent import layers as recurrent_layers
from agentloop.trainer.run.learners import create, create_critic
from tests.support.small_models import save_small_model


@pytest.fixture(scope="module")
def phimoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose attention the learner does not compute as transformers does."""
    return save_small_model("phimoe", tmp_path_factory.mktemp("phimoe"))


def _config(folder: Path, **options: object) -> LearnerConfig:
    return LearnerConfig(model=str(folder), device="cpu", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "layer"),
    [
        ("qwen3_next", "Qwen3NextGatedDeltaNet"),
        ("qwen3_5_text", "Qwen3_5GatedDeltaNet"),
        ("lfm2", "Lfm2ShortConv"),
        ("bamba", "BambaMixer"),
        ("falcon_h1", "FalconH1Mixer"),
    ],
)
def test_a_layer_with_a_state_is_named(family: str, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kind of layer that the learner does not know is reported in the same way."""
    monkeypatch.setattr(recurrent_layers, "recurrent_modules", lambda model: [])
    differs = rf"its layer {layer} computes the sequences of a packed row differently from each alone.*skip_checks"
    refuses = (
        r"a forward on its packed rows raised ValueError: .*can't keep packed sequences apart"  # transformers 5.20
    )
    with pytest.raises(UserError, match=rf"The model {family} cannot be trained: ({differs}|{refuses})"):
        create(_config(save_small_model(family, tmp_path)))


def test_dropout_that_stays_on_in_training_is_named(tmp_path: Path):
    save_small_model("seed_oss", tmp_path)
    create(_config(tmp_path))
    policy = load_packed_lm(tmp_path, torch.float32)
    for module in policy.modules():
        if hasattr(module, "residual_dropout"):  # with a name that the learner does not know it would stay on
            module.residual_dropout = 0.1
    with pytest.raises(UserError, match=r"seed_oss .* SeedOss\w+ .* in training mode.* Set .*residual_dropout to 0"):
        packing_check.check(policy)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"residual_dropout": 0.0, "attention_dropout": 0.0}))
    create(_config(tmp_path))


def test_an_ignored_attention_window_is_found_if_it_is_longer_than_the_probe(tmp_path: Path):
    save_small_model("phimoe", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"sliding_window": 1000, "router_jitter_noise": 0.0}))
    with pytest.raises(UserError, match="PhimoeAttention"):
        create(_config(tmp_path))


@pytest.mark.parametrize("window", [8, 1000])
def test_an_attention_window_passes_the_check(tiny_qwen3, window: int):
    create(_config(tiny_qwen3(use_sliding_window=True, sliding_window=window, max_window_layers=1)))


def test_a_check_is_left_out_by_its_name_only(phimoe: Path):
    create(_config(phimoe, skip_checks=("packed_equals_alone",)))
    with pytest.raises(UserError, match="packed_equals_alone"):
        _config(phimoe, skip_checks=("all",))


def test_critics_and_references_are_checked(tiny_qwen3, phimoe: Path):
    with pytest.raises(UserError, match="PhimoeAttention"):
        create_critic(_config(phimoe, loss="value"))
    with pytest.raises(UserError, match="PhimoeAttention"):
        create(_config(tiny_qwen3(), reference=str(phimoe)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_check_leaves_no_trace(tiny_qwen3, dtype: torch.dtype):
    policy = load_packed_lm(tiny_qwen3(), dtype, checkpointing="full")
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    forwards, random = [layer.forward for layer in policy.layers()], torch.get_rng_state()
    settings = policy.model.config.to_dict()
    packing_check.check(policy, shares_prefixes=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    assert all(parameter.dtype == dtype for parameter in policy.parameters())
    assert [layer.forward for layer in policy.layers()] == forwards
    assert policy.model.config.to_dict() == settings
    assert policy.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in policy.modules())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_difference_is_found_in_bfloat16(phimoe: Path):
    with pytest.raises(UserError, match="PhimoeAttention"):
        create(_config(phimoe, param_dtype="bfloat16", compute_dtype="bfloat16"))


def test_adapters_are_checked_with_their_model(tiny_qwen3, phimoe: Path):
    create(_config(tiny_qwen3(), lora={"rank": 2}, compute_dtype="bfloat16"))
    with pytest.raises(UserError, match="PhimoeAttention"):
        create(_config(phimoe, lora={"rank": 2, "targets": ["q_proj"]}))


def test_rows_with_shared_prefixes_are_checked(tiny_qwen3, monkeypatch: pytest.MonkeyPatch):
    policy, of = load_packed_lm(tiny_qwen3(), torch.float32), SharedPrefixes.of

    def forgetful(*args: object) -> SharedPrefixes:
        found = of(*args)  # type: ignore[arg-type]
        return replace(found, positions=[0] * len(found.positions))

    packing_check.check(policy, shares_prefixes=True)
    monkeypatch.setattr(attention.SharedPrefixes, "of", forgetful)
    with pytest.raises(UserError, match=r"learner\.share_prefixes.* set it to false"):
        packing_check.check(policy, shares_prefixes=True)
