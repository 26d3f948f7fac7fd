"""The learner computes tokens with the experts of the engine, however the work is divided."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.experts import routing
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.learner.metrics.routing_metrics import RoutingMetrics
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.packed_lm import load_packed_lm
from agentloop.trainer.model.row_layout import NOT_ROUTED, RowLayout, Unit
from agentloop.trainer.run.learners import create, create_critic
from tests.support.small_models import save_small_model

_LAYERS, _EXPERTS, _K = 4, 4, 2
_PREFIX = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model("qwen3_moe", tmp_path_factory.mktemp("moe"))


def _samples() -> list[Sample]:
    """Samples of one group with a common prompt; the experts of the last tokens are unknown."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 120, _PREFIX)
    first = rng.integers(0, _EXPERTS, (_PREFIX, _LAYERS, 1))
    samples = []
    for length, unknown in ((14, 1), (9, 3), (21, 1)):
        ids = np.concatenate([prompt, rng.integers(3, 120, length - _PREFIX)]).astype(np.int32)
        own = rng.integers(0, _EXPERTS, (length - _PREFIX - unknown, _LAYERS, 1))
        routed = np.concatenate([first, own])
        routed = np.concatenate([routed, (routed + 1) % _EXPERTS], axis=2).astype(np.int16)
        mask = np.arange(length) >= _PREFIX
        zeros = np.zeros(length, np.float32)
        samples.append(Sample(ids, mask, zeros, np.zeros(length, np.int32), 1.0, group_id="g", routed=routed))
    return samples


def _config(folder: Path, **options: object) -> LearnerConfig:
    values: dict[str, object] = {"loss": "sft", "lr": 1e-2, "eps": 1.0, "router_replay": True, **options}
    return LearnerConfig(model=str(folder), device="cpu", **values)  # type: ignore[arg-type]


def _alone(folder: Path, sample: Sample) -> np.ndarray:
    """Return log-probabilities that plain transformers computes with the experts of a sample."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    whole = np.full((len(sample), _LAYERS, _K), -1)
    whole[: len(sample.routed)] = sample.routed
    for number, block in routing.prepare(model).items():
        routing.set_replayed(block, torch.from_numpy(whole[:, number]))
    ids = torch.from_numpy(sample.token_ids).long()
    with torch.no_grad():
        log_p = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
    return log_p[:-1].gather(1, ids[1:, None])[:, 0].numpy()[sample.loss_mask[1:]]


@pytest.mark.parametrize(
    "options",
    [{}, {"token_budget": 22}, {"share_prefixes": True}, {"checkpointing": "full"}, {"checkpointing": "selective"}],
    ids=str,
)
def test_a_row_uses_the_experts_of_each_sample(options: dict[str, object], folder: Path):
    samples = _samples()
    learner = create(_config(folder, **options))
    for got, sample in zip(learner.logprobs(samples), samples, strict=True):
        np.testing.assert_allclose(got, _alone(folder, sample), atol=1e-4)
    metrics = learner.step(TrainBatch(samples))
    plain = create(_config(folder, router_replay=False))
    expected = plain.step(TrainBatch(samples))
    assert 0.2 < metrics["experts/changed"] < 0.8
    assert "experts/changed" not in expected
    assert metrics["loss"] != pytest.approx(expected["loss"], rel=1e-3)
    whole = create(_config(folder)).step(TrainBatch(samples))
    assert metrics["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)


def test_replaying_its_own_experts_changes_nothing(folder: Path):
    samples = _samples()
    free = create(_config(folder, router_replay=False))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    blocks = routing.prepare(model)
    own = []
    for sample in samples:
        model(input_ids=torch.from_numpy(sample.token_ids).long()[None], use_cache=False)
        chosen = [routing.take_choice(blocks[number]).own.numpy() for number in range(_LAYERS)]
        own.append(replace(sample, routed=np.stack(chosen, axis=1).astype(np.int16)))
    replayed = create(_config(folder)).step(TrainBatch(own))
    assert replayed["experts/changed"] == 0
    assert replayed["loss"] == pytest.approx(free.step(TrainBatch(samples))["loss"], rel=1e-5)


def test_reference_and_critic_route_freely(folder: Path):
    samples = _samples()
    learner = create(_config(folder, reference=str(folder)))
    free = create(_config(folder, router_replay=False)).logprobs(samples)
    for got, want in zip(learner.reference_logprobs(samples), free, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    critic = create_critic(_config(folder, loss="value", router_replay=False))
    values = [replace(sample, old_logprobs=np.zeros(sample.num_sampled, np.float32)) for sample in samples]
    assert critic.step(TrainBatch(values))["experts/idle"] < 0.5


def test_a_shared_prompt_has_the_experts_of_the_first_sample():
    samples = [replace(sample, routed=None) if n == 1 else sample for n, sample in enumerate(_samples())]
    layout = RowLayout.of(samples, [Unit([0, 1, 2], _PREFIX, 32)])
    assert layout.routed is not None
    assert layout.routed.shape == (len(layout.token_ids), _LAYERS, _K)
    np.testing.assert_array_equal(layout.routed[:13], samples[0].routed)
    assert (layout.routed[13:19] == NOT_ROUTED).all()
    np.testing.assert_array_equal(layout.routed[19:-1], samples[2].routed[_PREFIX:])
    assert RowLayout.of([samples[1]]).routed is None


@pytest.mark.slow
def test_ranks_replay_as_one_does(folder: Path):
    one = create(_config(folder)).step(TrainBatch(_samples()))
    layouts: list[dict[str, object]] = [{}, {"gather_once": True}, {"sequence_parallel": 2}]
    ranks = LearnerRanks(2, "cpu")  # they take long to start: all layouts share them
    try:
        found = [create(_config(folder, **options), ranks).step(TrainBatch(_samples())) for options in layouts]
    finally:
        ranks.close()
    for options, got in zip(layouts, found, strict=True):
        for name in filter(lambda name: name.startswith(("experts/", "loss", "grad_norm")), one):
            assert got[name] == pytest.approx(one[name], rel=1e-4, abs=1e-7), (options, name)


def test_models_whose_experts_cannot_be_given_are_refused(tiny_qwen3, tmp_path: Path):
    with pytest.raises(UserError, match="qwen3 has no experts whose routing transformers exposes"):
        create(_config(tiny_qwen3()))
    with pytest.raises(UserError, match=r"does not call torch\.topk"):
        create(_config(save_small_model("zaya", tmp_path / "zaya"), skip_checks=("packed_equals_alone",)))


def test_metrics_of_the_load():
    metrics = RoutingMetrics()
    assert metrics.result(torch.device("cpu")) == {}
    metrics.add(None, ())
    metrics.add(torch.zeros(3, 6, dtype=torch.int64), [1, 2, 3])
    assert metrics.result(torch.device("cpu")) == {}
    metrics.add(torch.tensor([[4, 0, 0, 4, 0, 0], [0] * 6, [2, 2, 2, 2, 8, 2]]), [1, 2, 3])
    found = metrics.result(torch.device("cpu"))
    assert found["experts/max_share/1"] == 0.5
    assert found["experts/max_share/3"] == 0.25
    assert found["experts/idle"] == 0.25
    assert found["experts/entropy/1"] == pytest.approx(np.log(2))
    assert found["experts/entropy/3"] == pytest.approx(np.log(4))
    assert found["experts/changed"] == 0.25
    assert "experts/idle/2" not in found


@pytest.mark.slow
def test_compiled_layers_with_selective_checkpointing_use_the_experts(folder: Path):
    given = (torch.arange(37)[None, :, None] + torch.arange(_LAYERS)[:, None, None] + torch.arange(_K)) % _EXPERTS
    row = replace(PackedRow.of([20, 17], padded=False), routed=given.to(torch.int16))
    ids, predicting = torch.arange(3, 40)[None], torch.arange(5, 30)
    found = []
    for compiled in (False, True):
        policy = load_packed_lm(folder, torch.bfloat16, kernel="math", checkpointing="selective", compiled=compiled)
        _, logprobs, _ = policy(ids, row, predicting, ids[0, 6:31], 1.0)
        logprobs.mean().backward()
        router = policy.routing.blocks[0].gate.weight.grad
        assert policy.routing.load is not None
        found.append((logprobs.detach(), router.float(), policy.routing.load[:, :-1]))
    (plain, gradient, load), (compiled_logprobs, compiled_gradient, compiled_load) = found
    assert torch.equal(load, compiled_load)
    assert load[0].tolist() == [*torch.bincount(given[0].flatten()).tolist(), given[0].numel()]
    torch.testing.assert_close(plain, compiled_logprobs, atol=0.1, rtol=0)  # bfloat16
    assert torch.nn.functional.cosine_similarity(gradient.flatten(), compiled_gradient.flatten(), dim=0) > 0.98
