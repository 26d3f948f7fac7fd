from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from agentloop.config.auxiliary_model import CriticConfig
from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.run.learners import create_critic

_GOOD = 17


@pytest.fixture(scope="module")
def model_folder(tiny_qwen3) -> Path:
    return tiny_qwen3(tie_word_embeddings=False)


def _critic(model_folder: Path, **options):
    learner = LearnerConfig(model=str(model_folder), device="cpu", token_budget=options.pop("token_budget", 16384))
    return create_critic(CriticConfig(**options).as_learner(learner.replace(corrections=("x",))))


def _samples(num: int) -> list[Sample]:
    """Token sequences whose worth is 1 as long as they begin with the good token, -1 else."""
    rng = np.random.default_rng(0)
    samples = []
    for number in range(num):
        length = int(rng.integers(4, 9))
        ids = rng.integers(0, 64, length).astype(np.int32)
        ids[0] = _GOOD if number % 2 else 3
        mask = np.array([False] + [True] * (length - 1))
        targets = np.full(length - 1, 1.0 if number % 2 else -1.0, np.float32)
        old = np.zeros(length - 1, np.float32)
        zeros = np.zeros(length, np.float32)
        samples.append(Sample(ids, mask, zeros, np.zeros(length, np.int32), advantage=targets, old_logprobs=old))
    return samples


def test_the_head_of_a_frozen_backbone_is_trained_in_the_precision_of_parameters(model_folder: Path):
    learner = LearnerConfig(model=str(model_folder), device="cpu", compute_dtype="bfloat16", lora={"rank": 2})
    critic = create_critic(CriticConfig(lr=1e-2).as_learner(learner))
    assert {each.dtype for each in critic.policy.parameters() if each.requires_grad} == {torch.float32}
    critic.step(TrainBatch(_samples(4)))
    assert critic.policy.value_head.bias.abs() > 0


def test_values_are_zero_at_first_and_become_the_targets(model_folder: Path):
    critic = _critic(model_folder, lr=2e-2, clip=None)
    samples = _samples(8)
    assert not np.concatenate(critic.logprobs(samples)).any()
    first = critic.step(TrainBatch(samples))
    assert first["loss"] == pytest.approx(0.5)
    for _ in range(12):
        critic.step(TrainBatch(samples))
    for sample, values in zip(samples, critic.logprobs(samples), strict=True):
        np.testing.assert_allclose(values, sample.advantage, atol=0.2)


def test_a_value_depends_on_earlier_tokens_only(model_folder: Path):
    critic = _critic(model_folder, lr=1e-2, clip=None)
    samples = _samples(4)
    critic.step(TrainBatch(samples))
    head = dict(critic.weights())
    backbone = AutoModel.from_pretrained(model_folder, attn_implementation="eager")
    names = dict(critic.policy.model.named_parameters())
    backbone.load_state_dict(names)
    weight, bias = (getattr(critic.policy.value_head, name).detach() for name in ("weight", "bias"))
    assert head.keys() == names.keys()
    for sample, values in zip(samples, critic.logprobs(samples), strict=True):
        with torch.no_grad():
            hidden = backbone(input_ids=torch.from_numpy(sample.token_ids).long()[None]).last_hidden_state[0]
        expected = (hidden[:-1] @ weight.T + bias).detach().squeeze(1)[torch.from_numpy(sample.loss_mask[1:])]
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_the_update_of_the_critic_does_not_depend_on_the_plan(model_folder: Path):
    whole, split = _critic(model_folder), _critic(model_folder, token_budget=10)
    samples = _samples(6)
    want, got = whole.step(TrainBatch(samples)), split.step(TrainBatch(samples[::-1]))
    for name in ("loss", "grad_norm"):
        assert got[name] == pytest.approx(want[name], rel=1e-5)


def test_a_critic_is_saved_whole(model_folder: Path, tmp_path: Path):
    critic = _critic(model_folder, lr=1e-2)
    samples = _samples(4)
    critic.step(TrainBatch(samples))
    critic.save(tmp_path / "state")
    again = _critic(model_folder, lr=1e-2)
    again.load(tmp_path / "state")
    np.testing.assert_array_equal(np.concatenate(again.logprobs(samples)), np.concatenate(critic.logprobs(samples)))
    assert again.step(TrainBatch(samples))["loss"] == critic.step(TrainBatch(samples))["loss"]
