"""Adapters on experts: they compute and learn what peft does, are merged for engines, and peft reads them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.model.experts import adapters
from tests.support.small_models import save_small_model
from tests.support.tiny import random_batch

_TARGETS = {"nemotron_h": ["up_proj", "down_proj", "q_proj"]}
"""Targets of families whose other layers peft refuses, because they have Mamba layers."""


@pytest.fixture(scope="module", params=["qwen3_moe", "gpt_oss", "glm4_moe", "nemotron_h"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(family, tmp_path_factory.mktemp(family))


def _learner(folder: Path, targets: object = "all", **options: object) -> FsdpLearner:
    lora = {"rank": 4, "alpha": 8, "targets": targets}
    settings = {"lora": lora, "loss": "sft", "lr": 1e-2, "device": "cpu", "grad_clip": None, **options}
    return FsdpLearner(LearnerConfig(model=str(folder), **settings))  # type: ignore[arg-type]


def _batch(seed: int = 0) -> TrainBatch:
    return random_batch(4, seed=seed, vocab=128)


def _logprobs(model: torch.nn.Module, batch: TrainBatch) -> list[torch.Tensor]:
    found = []
    for sample in batch.samples:
        ids = torch.from_numpy(sample.token_ids).long()
        log_p = F.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0], dim=-1)
        found.append(log_p[:-1].gather(1, ids[1:, None])[:, 0][torch.from_numpy(sample.loss_mask[1:])])
    return found


def test_outputs_and_gradients_equal_those_of_peft(family: str, folder: Path, tmp_path: Path):
    targets = _TARGETS.get(family, "all")
    first = _learner(folder, targets)
    first.step(_batch(1))  # from here on the adapters have an effect
    first.save_hf(tmp_path / "first")
    first.save(tmp_path / "state")
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "first" / "adapter"), is_trainable=True).eval()
    batch = _batch()
    expected = _logprobs(adapted, batch)
    # The update is then g / (|g| + 1), smooth in the gradient: equal adapters mean equal gradients.
    second = _learner(folder, targets, lr=1.0, eps=1.0)
    second.load_weights(tmp_path / "state")
    for got, want in zip(second.logprobs(batch.samples), expected, strict=True):
        np.testing.assert_allclose(got, want.detach(), atol=1e-5)
    (-torch.cat(expected).mean()).backward()
    second.step(batch)
    second.save_hf(tmp_path / "second")
    updated = load_file(tmp_path / "second" / "adapter" / "adapter_model.safetensors")
    trained = {name.replace(".default", ""): p for name, p in adapted.named_parameters() if p.requires_grad}
    assert any(".experts." in name for name in trained)
    assert updated.keys() == trained.keys()
    for name, parameter in trained.items():
        gradient = parameter.grad
        assert gradient is not None, name
        torch.testing.assert_close(updated[name], parameter - gradient / (gradient.abs() + 1), atol=1e-5, rtol=0)


def test_published_weights_compute_the_same(family: str, folder: Path):
    learner = _learner(folder)
    before = learner.logprobs(_batch().samples)
    learner.step(_batch(1))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    parameters = dict(model.named_parameters())
    published = dict(learner.weights())
    assert published.keys() == parameters.keys()
    with torch.no_grad():
        for name, weight in published.items():
            parameters[name].copy_(weight)
    after = _logprobs(model, _batch())
    for got, want, old in zip(learner.logprobs(_batch().samples), after, before, strict=True):
        np.testing.assert_allclose(got, want.detach(), atol=1e-4)
        assert np.abs(got - old).max() > 1e-3


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model("qwen3_moe", tmp_path_factory.mktemp("moe"))


@pytest.mark.parametrize(
    "options", [{"checkpointing": "full"}, {"checkpointing": "selective"}, {"router_replay": True}], ids=str
)
def test_checkpointing_and_replay_do_not_change_the_update(options: dict[str, object], moe: Path):
    plain, other = _learner(moe), _learner(moe, **options)
    for learner in (plain, other):
        learner.step(_batch())
        learner.step(_batch(1))
    expected = dict(plain.weights())
    for name, weight in other.weights():
        torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=1e-4)


def test_every_rank_can_be_computed(moe: Path):
    learner = FsdpLearner(LearnerConfig(model=str(moe), device="cpu", lr=1e-2, lora={"rank": 3}))  # type: ignore[arg-type]
    before = learner.logprobs(_batch().samples)
    learner.step(_batch(1))
    after = learner.logprobs(_batch().samples)
    assert any(np.abs(one - other).max() > 1e-3 for one, other in zip(before, after, strict=True))


def test_experts_alone_can_be_targets(moe: Path):
    learner = _learner(moe, ["gate_up_proj"], kl_coef=0.1)
    trained = [name for name, parameter in learner.policy.named_parameters() if parameter.requires_grad]
    assert {name.rpartition(".experts.")[2] for name in trained} == {
        "gate_up_proj_adapter.lora_a",
        "gate_up_proj_adapter.lora_b",
    }
    samples = _batch().samples
    before = learner.logprobs(samples)
    learner.step(_batch(1))
    for one, other in zip(learner.reference_logprobs(samples), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_experts_with_adapters_are_one_graph(moe: Path):
    model = AutoModelForCausalLM.from_pretrained(moe, dtype=torch.bfloat16)  # float32 has no compiled backward
    experts = next(iter(adapters.experts_of(model).values()))
    for number, name in enumerate(adapters.weights_of(experts)):
        adapters.add_adapter(experts, name, rank=8, alpha=8.0, dtype=torch.bfloat16, seed=number)
    hidden = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    chosen, weights = torch.tensor([[0, 3]] * 6), torch.full((6, 2), 0.5)
    compiled = torch.compile(lambda *args: experts(*args), backend="aot_eager", fullgraph=True)
    out, plain = compiled(hidden, chosen, weights), experts(hidden, chosen, weights)
    torch.testing.assert_close(out, plain)
    of_compiled, of_plain = (torch.autograd.grad(each.float().sum(), hidden)[0] for each in (out, plain))
    torch.testing.assert_close(of_compiled, of_plain)
