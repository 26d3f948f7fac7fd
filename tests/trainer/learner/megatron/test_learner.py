"""The Megatron learner on one rank, in this process, and through `create`."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GemmaConfig, LlamaConfig, MistralConfig

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.learner.checkpoint_files import CheckpointFiles
from agentloop.trainer.learner.megatron.learner import MegatronLearner
from agentloop.trainer.run.learners import create, create_critic
from tests.trainer.learner.megatron.on_ranks import samples


def _config(models: Path, name: str = "qwen3", **options: Any) -> LearnerConfig:
    values: dict[str, Any] = {"lr": 1.0, "eps": 1.0, "grad_clip": None, "token_budget": 130, **options}
    return LearnerConfig(model=str(models / name), backend="megatron", device="cpu", **values)


def _weights(learner: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.weights()}


class _Engine:
    async def update_weights(self, weights: Any, version: int) -> None:
        self.weights, self.version = {name: value.clone() for name, value in weights.tensors()}, version


@pytest.mark.parametrize("backend", ["megatron", "fsdp"])
def test_a_reference_that_is_no_model_is_named_as_such(models: Path, tmp_path: Path, backend: str):
    wrong = _config(models, reference=str(tmp_path)).model_copy(update={"backend": backend})
    with pytest.raises(UserError, match=r"is not a model folder.* Set learner\.reference to"):
        create(wrong)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "qwen2", "moe"])
def test_weights_published_before_training_equal_the_checkpoint_bit_for_bit(models: Path, name: str):
    engine = _Engine()
    asyncio.run(create(_config(models, name)).publish(engine, 7))  # type: ignore[arg-type]
    files = CheckpointFiles(models / name)
    assert engine.version == 7
    assert engine.weights.keys() == files.shapes.keys()
    assert all(torch.equal(value, files.read(key)) for key, value in engine.weights.items())


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_logprobs_equal_those_of_fsdp(models: Path, name: str):
    megatron, fsdp = (
        create(_config(models, name).model_copy(update={"backend": each})).logprobs(samples())
        for each in ("megatron", "fsdp")
    )
    for got, want in zip(megatron, fsdp, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_comes_near_float32_and_keeps_small_updates(models: Path):
    exact = MegatronLearner(_config(models))
    want = exact.step(TrainBatch(samples()))
    rough = MegatronLearner(_config(models, compute_dtype="bfloat16", lr=5e-4, eps=1e-8))
    before = _weights(rough)
    assert {value.dtype for value in before.values()} == {torch.bfloat16}
    got = rough.step(TrainBatch(samples()))
    assert got["loss"] == pytest.approx(want["loss"], abs=0.03)
    assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=0.05)
    # Each update is below half the spacing of bfloat16 near 1, where norms are: many of them are not.
    for _ in range(12):
        rough.step(TrainBatch(samples()))
    norm = "model.norm.weight"
    assert not torch.equal(_weights(rough)[norm], before[norm])


def test_an_update_that_is_not_finite_is_skipped_and_names_its_trajectories(
    models: Path, caplog: pytest.LogCaptureFixture
):
    learner = MegatronLearner(_config(models))
    before = _weights(learner)
    bad = [replace(sample, advantage=float("inf")) for sample in samples()[:1]]
    metrics = learner.step(TrainBatch([*bad, *samples()[1:]]))
    assert "Skipped an update" in caplog.text
    assert (metrics["updates"], metrics["updates_skipped"]) == (0, 1)
    assert all(torch.equal(value, before[name]) for name, value in _weights(learner).items())
    assert learner.step(TrainBatch(samples()))["updates"] == 1


def test_an_empty_batch_changes_nothing(models: Path):
    learner = MegatronLearner(_config(models))
    before = _weights(learner)
    assert learner.step(TrainBatch([]))["updates"] == 0
    assert learner.logprobs([]) == []
    assert all(torch.equal(value, before[name]) for name, value in _weights(learner).items())


@pytest.mark.slow
def test_ranks_that_the_run_starts_itself(models: Path):
    one = MegatronLearner(_config(models))
    want, expected = one.step(TrainBatch(samples())), one.logprobs(samples())
    two = create(_config(models, ranks=2, pipeline_parallel=2))
    try:
        got = two.step(TrainBatch(samples()))
        logprobs = two.logprobs(samples())
    finally:
        two.close()
    for name in ("loss", "grad_norm", "computed_tokens"):
        assert got[name] == pytest.approx(want[name], rel=1e-5)
    for ours, theirs in zip(logprobs, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 2}, "= 2 does not divide 1 ranks"),
        ({"pipeline_parallel": 3}, "pipeline_parallel=3 does not divide the model's 4 layers"),
        ({"expert_parallel": 2}, "expert_parallel=2 does not divide the model's 0 experts"),
        ({"virtual_pipeline": 2}, "virtual_pipeline=2 needs pipeline_parallel above 1"),
    ],
)
def test_impossible_layouts_are_refused_before_anything_is_loaded(
    models: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*args: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("agentloop.trainer.learner.checkpoint_files.CheckpointFiles.__init__", fail)
    with pytest.raises(UserError, match=message):
        create(_config(models, **options))


def test_unsupported_models_are_refused(models: Path, tmp_path: Path):
    GemmaConfig().save_pretrained(tmp_path / "gemma")
    with pytest.raises(UserError, match="trains llama, mistral, qwen2, qwen3, qwen3_moe, not gemma"):
        create(_config(tmp_path, "gemma"))
    MistralConfig(sliding_window=4096).save_pretrained(tmp_path / "mistral")
    with pytest.raises(UserError, match="does not support sliding windows"):
        create(_config(tmp_path, "mistral"))
    LlamaConfig(mlp_bias=True).save_pretrained(tmp_path / "llama")
    with pytest.raises(UserError, match="does not support mlp_bias"):
        create(_config(tmp_path, "llama"))
    with pytest.raises(UserError, match=r"no config\.json"):
        create(_config(tmp_path, "nowhere"))
    with pytest.raises(UserError, match="megatron has no critic"):
        create_critic(_config(models))


def test_a_state_of_another_model_or_none(models: Path, tmp_path: Path):
    learner = MegatronLearner(_config(models))
    with pytest.raises(UserError, match="does not contain the state"):
        learner.load(tmp_path)
    learner.save(tmp_path / "state")
    with pytest.raises(UserError, match="does not fit the model"):
        MegatronLearner(_config(models, "qwen2")).load(tmp_path / "state")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_with_sleep_in_between_are_those_without(models: Path, dtype: str):
    results = []
    for sleeps in (False, True):
        learner = MegatronLearner(_config(models, compute_dtype=dtype, kl_coef=0.1))
        losses = []
        for _ in range(2):
            if sleeps:
                learner.sleep()
                assert not any(parameter.untyped_storage().nbytes() for parameter in learner.model.parameters())
                learner.wake()
            losses.append(learner.step(TrainBatch(samples()))["loss"])
        results.append((losses, _weights(learner)))
    (losses, weights), (losses_asleep, weights_asleep) = results
    assert losses == losses_asleep
    assert all(torch.equal(weights[name], weights_asleep[name]) for name in weights)
