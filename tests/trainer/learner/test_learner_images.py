"""Learning from images: the engine's log-probabilities in each plan, with the tower trained or frozen."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.packed_lm import load_packed_lm
from agentloop.trainer.sizing.megatron_models import check_supported

_SAMPLES = Path(__file__).parents[2] / "support" / "image_samples.py"
_MODELS = Path(__file__).parents[2] / "agentloop" / "vision" / "models.py"
build_vision_model = load_object(f"{_MODELS}:build_vision_model", "function")
image_samples = load_object(f"{_SAMPLES}:image_samples", "function")
gradients = load_object(f"{_SAMPLES}:gradients", "function")
learner_of = load_object(f"{_SAMPLES}:learner_of", "function")
_TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def samples(model):
    return image_samples(model)


def assert_equal(found, expected, case):
    assert found.keys() == expected.keys(), case
    for name, gradient in expected.items():
        # A bias of keys shifts all scores of a query alike: its gradient is rounding error.
        size = gradient.norm() if not name.endswith("k_proj.bias") else torch.tensor(1.0)
        assert (found[name] - gradient).norm() <= _TOLERANCE * size + 1e-7, (case, name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_logprobs_are_those_of_the_engine(family, tmp_path):
    folder = build_vision_model(tmp_path / "model", family)
    samples = image_samples(folder)
    assert [len(sample.images) for sample in samples] == [2, 2, 2, 2, 1, 0]
    found = learner_of(folder).logprobs(samples)
    for sample, logprobs in zip(samples, found, strict=True):
        np.testing.assert_allclose(logprobs, sample.logprobs[sample.loss_mask], atol=1e-4)


@pytest.mark.slow
def test_loss_and_gradients_do_not_depend_on_the_plan(model, samples):
    loss, expected = gradients(learner_of(model, share_prefixes=False, token_budget=2000), samples)
    tower = [gradient for name, gradient in expected.items() if ".visual." in name]
    assert tower
    assert all(gradient.norm() > 0 for gradient in tower)
    backwards = samples[::-1]
    for case in [
        {"options": {"token_budget": 200}, "samples": samples},
        {"options": {"token_budget": 2000}, "samples": backwards},
        {"options": {"token_budget": 2000, "share_prefixes": True}, "samples": samples},
        {"options": {"token_budget": 2000, "checkpointing": "full"}, "samples": samples},
        {"options": {"token_budget": 2000, "checkpointing": "selective"}, "samples": samples},
        {"options": {"token_budget": 2000, "checkpointing": "sparse", "share_prefixes": True}, "samples": samples},
    ]:
        other_loss, found = gradients(learner_of(model, **case["options"]), case["samples"])
        assert abs(other_loss - loss) <= _TOLERANCE * abs(loss), case["options"]
        assert_equal(found, expected, case["options"])


def test_a_frozen_tower_is_left_as_it_is(model, samples):
    learner = learner_of(model, freeze_vision=True, lr=1e-2)
    before = {name: parameter.clone() for name, parameter in learner.policy.model.named_parameters()}
    trained = learner_of(model, lr=1e-2).step(TrainBatch(samples))
    metrics = learner.step(TrainBatch(samples))
    assert metrics["grad_norm"] < trained["grad_norm"]
    for name, parameter in learner.policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (".visual." in name), name


def test_a_run_without_pictures_so_far_is_resumed(model, samples, tmp_path):
    learners = [learner_of(model, lr=1e-2) for _ in range(3)]
    for learner in learners[:2]:
        learner.step(TrainBatch(samples[5:]))
    learners[1].save(tmp_path / "state")
    learners[2].load(tmp_path / "state")
    for learner in learners:
        learner.step(TrainBatch(samples))
    unbroken, *others = ({name: weight.clone() for name, weight in learner.weights()} for learner in learners)
    for name, weight in unbroken.items():
        assert all(torch.equal(other[name], weight) for other in others), name


def test_the_tower_beside_adapters_is_frozen_and_its_passes_are_counted_so(model, samples):
    adapters, frozen, whole = (
        learner_of(model, **options) for options in ({"lora": {"rank": 2}}, {"freeze_vision": True}, {})
    )
    assert not any(parameter.requires_grad for parameter in adapters.policy.model.base_model.visual.parameters())
    assert adapters.vision_passes == frozen.vision_passes < whole.vision_passes
    assert adapters.step(TrainBatch(samples))["updates"] == 1


def test_sequence_parallelism_refuses_a_vision_model_before_it_is_loaded(model, tmp_path):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())  # and no weights
    with pytest.raises(UserError, match="supports only text, but this model has a vision tower"):
        load_packed_lm(tmp_path, torch.float32, sequence=SequenceGroup("two", 0, 2))


def test_megatron_refuses_a_vision_model(model):
    with pytest.raises(UserError, match=r"trains llama, .*, qwen3_moe, not qwen2_5_vl\. Set learner\.backend=fsdp"):
        check_supported(AutoConfig.from_pretrained(model))


def test_a_text_model_has_no_tower_to_freeze(tmp_path):
    from agentloop.recipes.tiny.model import build_model

    with pytest.raises(UserError, match="no vision tower"):
        learner_of(build_model(tmp_path / "text"), freeze_vision=True)
