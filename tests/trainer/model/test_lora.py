"""LoRA adapters: training, publishing, saving and resuming, and what must not change."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model.lora import LoraLinear
from agentloop.trainer.model.row_layout import units
from agentloop.trainer.sizing.layouts import Layout
from agentloop.trainer.sizing.memory import training_memory
from agentloop.trainer.sizing.model_shape import ModelShape
from agentloop.trainer.sizing.shapes import shape_of
from tests.support.small_models import save_small_model
from tests.support.tiny import random_batch as _batch

LINEAR = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def learner_of(model: Path, **options: object) -> FsdpLearner:
    settings = {"lora": {"rank": 4, "alpha": 8}, "lr": 1e-2, "device": "cpu"} | options
    return FsdpLearner(LearnerConfig(model=str(model), **settings))  # type: ignore[arg-type]


def weights_of(learner: FsdpLearner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner.weights()}


def test_only_adapters_are_trained(tiny_qwen3):
    learner = learner_of(tiny_qwen3())
    trained = {name for name, parameter in learner.policy.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[-2] for name in trained} == set(LINEAR)
    assert {name.rpartition(".")[2] for name in trained} == {"lora_a", "lora_b"}
    before = {name: parameter.clone() for name, parameter in learner.policy.named_parameters()}
    learner.step(_batch(6))
    learner.step(_batch(6, seed=1))
    for name, parameter in learner.policy.named_parameters():
        assert torch.equal(parameter, before[name]) == (name not in trained), name


def test_published_weights_are_merged_and_compute_the_same(tiny_qwen3):
    model = tiny_qwen3()
    learner = learner_of(model)
    start = dict(AutoModelForCausalLM.from_pretrained(model).named_parameters())
    torch.testing.assert_close(weights_of(learner), {name: weight.detach() for name, weight in start.items()})
    learner.step(_batch(6))
    published = weights_of(learner)
    assert published.keys() == start.keys()
    name = "model.layers.0.self_attn.q_proj"
    adapter = learner.policy.model.get_submodule(name)
    assert isinstance(adapter, LoraLinear)
    change = (adapter.lora_b @ adapter.lora_a * 2.0).detach()
    assert change.abs().max() > 1e-4
    torch.testing.assert_close(published[f"{name}.weight"], start[f"{name}.weight"].detach() + change)
    # A learner of all weights that starts from the saved folder computes the same.
    samples = _batch(6, seed=1).samples
    found = learner.logprobs(samples)
    learner.save_hf(model.parent / "merged")
    for one, other in zip(found, learner_of(model.parent / "merged", lora=None).logprobs(samples), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_reference_model_is_the_base_without_adapters(tiny_qwen3):
    learner = learner_of(tiny_qwen3(), kl_coef=0.1)
    samples = _batch(6).samples
    before = learner.logprobs(samples)
    learner.step(_batch(6))
    for one, other in zip(learner.reference_logprobs(samples), before, strict=True):
        np.testing.assert_array_equal(one, other)
    after = learner.logprobs(samples)
    assert any(np.abs(one - other).max() > 1e-4 for one, other in zip(after, before, strict=True))


def test_peft_loads_the_saved_adapter(tiny_qwen3, tmp_path: Path):
    model = tiny_qwen3()
    learner = learner_of(model, lora={"rank": 4, "alpha": 8, "targets": ["q_proj", "down_proj"]})
    learner.step(_batch(6))
    learner.save_hf(tmp_path / "out")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(tmp_path / "out" / "adapter"))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, atol=1e-5, rtol=1e-5)
        assert (merged(ids).logits - AutoModelForCausalLM.from_pretrained(model)(ids).logits).abs().max() > 1e-3


def test_layers_with_a_common_weight_have_a_common_adapter(tmp_path: Path):
    """Otherwise the merged model, which has the weight once, would compute something else than the learner."""
    model = save_small_model("zamba", tmp_path / "model")
    learner, batch = learner_of(model, lr=3e-2), _batch(6)
    for _ in range(2):
        learner.step(batch)
    learner.save_hf(tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(model)
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "out" / "adapter"))
    for loaded in (AutoModelForCausalLM.from_pretrained(tmp_path / "out"), adapted):
        for sample, expected in zip(batch.samples, learner.logprobs(batch.samples), strict=True):
            ids = torch.from_numpy(sample.token_ids).long()
            with torch.no_grad():
                log_p = loaded.eval()(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
            found = log_p[:-1].gather(1, ids[1:, None])[:, 0][torch.from_numpy(sample.loss_mask[1:])]
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_model_without_linear_layers_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no linear layer that adapters fit"):
        learner_of(save_small_model("gpt2", tmp_path))


@pytest.mark.slow
def test_resume_is_exact_from_a_small_checkpoint(tiny_qwen3, tmp_path: Path):
    model = tiny_qwen3()
    unbroken = learner_of(model)
    first = learner_of(model)
    for learner in (unbroken, first):
        learner.step(_batch(6))
    first.save(tmp_path / "state")
    resumed = learner_of(model, seed=7)
    resumed.load(tmp_path / "state")
    for learner in (unbroken, resumed):
        learner.step(_batch(6, seed=1))
    for name, weight in weights_of(unbroken).items():
        assert torch.equal(weights_of(resumed)[name], weight), name
    learner_of(model, lora=None).save(tmp_path / "whole")
    sizes = [sum(file.stat().st_size for file in (tmp_path / folder).glob("*.distcp")) for folder in ("state", "whole")]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("restore", ["load", "load_weights"])
def test_adapters_are_refused_if_the_frozen_weights_have_changed(tiny_qwen3, tmp_path: Path, restore):
    """A run may start from the model of a run that then trains further, which writes its model again."""
    model = tiny_qwen3()
    learner_of(model).save(tmp_path / "state")
    getattr(learner_of(model), restore)(tmp_path / "state")
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    with pytest.raises(UserError, match=f"The weights in {model} have changed since the run started"):
        getattr(learner_of(model), restore)(tmp_path / "state")


def test_frozen_weights_use_compute_dtype(tiny_qwen3):
    learner = learner_of(tiny_qwen3(), compute_dtype="bfloat16")
    dtypes = {parameter.requires_grad: parameter.dtype for parameter in learner.policy.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    learner.step(_batch(6))
    assert {weight.dtype for weight in weights_of(learner).values()} == {torch.bfloat16}


def test_activation_checkpointing_does_not_change_the_update(tiny_qwen3):
    model = tiny_qwen3()
    plain, again = learner_of(model), learner_of(model, checkpointing="full")
    for learner in (plain, again):
        learner.step(_batch(6))
    for name, weight in weights_of(plain).items():
        torch.testing.assert_close(weights_of(again)[name], weight, atol=1e-5, rtol=1e-4)


def test_flops_exclude_weight_gradients_of_frozen_weights(tiny_qwen3):
    whole, adapters = (learner_of(tiny_qwen3(), lora=lora) for lora in (None, {"rank": 1}))
    ratio = adapters.step(_batch(6))["flops_per_second"] / whole.step(_batch(6))["flops_per_second"]
    assert ratio > 0
    samples = _batch(6).samples
    row = units(samples, [0], whole.config.token_budget, share=False)
    assert 0.6 < adapters.flops_of(samples, row) / whole.flops_of(samples, row) < 0.8


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"lora": {"targets": ["q_projj"]}},
            "names q_projj, which is not a linear layer of this model. Its linear layers are d",
        ),
        ({"lora": {"rank": 4}, "backend": "megatron"}, "only fsdp has lora"),
    ],
)
def test_unsupported_models_raise_user_error(tiny_qwen3, options, why):
    with pytest.raises((UserError, ValueError), match=why):
        learner_of(tiny_qwen3(), **options)


def test_estimated_memory_of_an_8b_model():
    shape = ModelShape.from_config(shape_of("Qwen/Qwen3-8B"))
    layout = Layout(checkpointing="full")
    adapters, whole = (training_memory(shape, layout, lora_rank=rank) for rank in (32, 0))
    billion = 1e9
    assert shape.adapter_parameters(32) == pytest.approx(87.3e6, rel=0.01)
    assert adapters.weights == pytest.approx(2 * 8.19 * billion + 4 * 87.3e6, rel=0.01)
    assert adapters.optimizer < 1 * billion
    assert adapters.total < whole.total / 4
