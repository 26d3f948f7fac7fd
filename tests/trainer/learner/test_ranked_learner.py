"""`learner.ranks`: a learner whose ranks beyond the first are actors of Ray computes what one rank does."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from agentloop.config.learner import LearnerConfig
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.cluster import session
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.cluster.rank_actor import Objects
from agentloop.trainer.learner.ranked_learner import RankedLearner
from agentloop.trainer.run.learners import create, create_critic
from agentloop.trainer.run.train import train
from tests.agentloop.vision.models import build_vision_model
from tests.support.image_samples import image_samples
from tests.support.parity import (
    BASIC_CASES,
    LAYOUTS,
    OBJECTIVE_LAYOUTS,
    Case,
    Layout,
    Result,
    assert_equal,
    cases,
    compute,
    grouped_samples,
    learner_config,
)
from tests.support.processes import descendants
from tests.support.small_models import save_small_model
from tests.support.tiny import random_batch as _random_batch

pytestmark = pytest.mark.slow

RANK = "ray::RankActor"
"""Beginning of the name that Ray gives the process of a rank."""
RANKS = 4
"""Number of ranks of all tests but those whose layout has another."""
CASES = cases()
MATRIX = [
    pytest.param(layout, name, id=f"{layout_name}, {name}")
    for layout_name, layout in sorted(LAYOUTS.items(), key=lambda item: (item[1].ranks, item[1].in_process))
    for name in (CASES if layout_name in OBJECTIVE_LAYOUTS else BASIC_CASES)
]
MEETINGS = pytest.mark.parametrize("options", [{}, {"gather_once": True}, {"sequence_parallel": 2}], ids=str)


def _config(model: Path, **options: object) -> LearnerConfig:
    values: dict[str, object] = {"device": "cpu", "token_budget": 256, "lr": 1e-3, **options}
    return LearnerConfig(model=str(model), **values)  # type: ignore[arg-type]


def _batch(seed: int = 0) -> TrainBatch:
    batch: TrainBatch = _random_batch(7, seed=seed, lengths=(4, 60))
    return batch


def _is_same(name: str) -> bool:
    """Return whether a metric does not depend on the number of ranks."""
    timed = ("time/", "learner/seconds/", "learner/tokens_per_second", "learner/flops_per_second")
    return not name.startswith((*timed, "learner/balance"))


async def test_a_run_on_two_ranks_is_the_run_on_one_and_resumes_from_its_checkpoint(sums: Path):
    async def run(name: str, steps: int, ranks: int) -> list[dict[str, float]]:
        overrides = [f"run.steps={steps}", f"learner.ranks={ranks}", "run.loggers=[]", "eval.every=0"]
        folder = await train(load_config(RunConfig, sums / "config.yaml", overrides), sums / name)
        assert (folder.model / "model.safetensors").is_file()
        assert not ray.is_initialized()
        assert not descendants(os.getpid(), RANK)
        return folder.read_metrics()

    whole = await run("whole", steps=4, ranks=1)
    await run("parts", steps=2, ranks=1)
    parts = await run("parts", steps=4, ranks=2)
    assert len(whole) == len(parts) == 4
    for one, two in zip(whole, parts, strict=True):
        assert set(filter(_is_same, one)) == set(filter(_is_same, two))
        for name in filter(_is_same, one):
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-9), name


@pytest.fixture(scope="module")
def model(tiny_qwen3) -> Path:
    return tiny_qwen3(tie_word_embeddings=False)


@pytest.fixture(scope="module")
def samples(model: Path) -> list[Sample]:
    return grouped_samples(model)


@pytest.fixture(scope="module")
def expected(model: Path, samples: list[Sample]) -> dict[str, Result]:
    """Return the results of one rank."""

    async def results() -> dict[str, Result]:
        return {name: await compute(model, case, samples) for name, case in CASES.items()}

    return asyncio.run(results())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample], Result]:
    """Return a model, a sample with images and one without, and the results of one rank."""
    model = build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl")
    samples = image_samples(model)
    samples = [samples[5], samples[0]]
    return model, samples, asyncio.run(compute(model, Case(), samples))


_EXPERTS = Case({"lora": {"rank": 2}, "lr": 0.3}, steps=2)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample], Result]:
    """Return a model with experts, samples, and the results of one rank."""
    model, samples = save_small_model("qwen3_moe", tmp_path_factory.mktemp("experts")), list(_batch().samples)
    return model, samples, asyncio.run(compute(model, _EXPERTS, samples))


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Result]]:
    """Return models of other families, and the results of one rank for `_batch()`.

    Layers of zamba have common weights. In latent attention, heads of values have another size.
    """
    models = {name: save_small_model(name, tmp_path_factory.mktemp(name)) for name in ("zamba", "deepseek_v3")}
    samples = list(_batch().samples)
    return {name: (model, asyncio.run(compute(model, Case(), samples))) for name, model in models.items()}


_MOVING = Case({"kl_coef": 0.3, "reference_every": 1}, steps=3)


@pytest.fixture(scope="module")
def moving(model: Path) -> tuple[list[Sample], Result]:
    """Return samples, and the results of one rank whose reference follows the policy."""
    samples = list(_batch().samples)
    return samples, asyncio.run(compute(model, _MOVING, samples))


class _Pool:
    """Ranks that all learners of this file share, as many as the last test needed. All are on one Ray."""

    def __init__(self) -> None:
        self._owns_ray = session.connect_learner(RANKS, on_nodes=1)
        self._ranks: LearnerRanks | None = None
        self._kind = (1, True)

    def of(self, count: int, *, in_process: bool = True) -> LearnerRanks | None:
        """Return that many ranks; one rank of this process needs none."""
        if self._ranks is None or self._kind != (count, in_process):
            self.close()
            self._kind = count, in_process
            alone = self._kind == (1, True)
            self._ranks = None if alone else LearnerRanks(count, "cpu", in_process=in_process)
        return self._ranks

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()

    def shut_down(self) -> None:
        self.close()
        if self._owns_ray:
            ray.shutdown()


@pytest.fixture(scope="module")
def pool(expected: object, images: object, experts: object, families: object, moving: object) -> Iterator[_Pool]:
    """Return the pool. Results of one rank come first: a process that has ranks cannot train on one."""
    pool = _Pool()
    yield pool
    pool.shut_down()


@pytest.mark.parametrize(("layout", "name"), MATRIX)
async def test_ranks_equal_one(
    layout: Layout, name: str, model: Path, samples: list[Sample], expected: dict[str, Result], pool: _Pool
):
    got = await compute(model, CASES[name], samples, layout, pool.of(layout.ranks, in_process=layout.in_process))
    assert_equal(got, expected[name])


async def test_adapters_of_experts_on_ranks_equal_those_on_one(pool: _Pool, experts: tuple[Path, list[Sample], Result]):
    model, samples, expected = experts
    assert expected.update_norm("model.layers.0.mlp.experts.gate_up_proj") > 0.01
    layout = Layout(RANKS, {"gather_once": False, "token_budget": 80})
    assert_equal(await compute(model, _EXPERTS, samples, layout, pool.of(RANKS)), expected)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("zamba", {"gather_once": False, "token_budget": 80}),
        ("zamba", {"gather_once": True, "token_budget": 80}),
        ("deepseek_v3", {"sequence_parallel": 2}),
    ],
)
async def test_ranks_train_other_families_as_one(
    family: str, options: dict[str, object], pool: _Pool, families: dict[str, tuple[Path, Result]]
):
    model, expected = families[family]
    assert_equal(await compute(model, Case(), list(_batch().samples), Layout(RANKS, options), pool.of(RANKS)), expected)


def test_the_cases_differ_from_each_other(expected: dict[str, Result]):
    """Options that did nothing would pass unnoticed."""
    plain = expected["loss ppo"].after
    for name, result in expected.items():
        is_plain = result.after.keys() == plain.keys() and all(
            torch.equal(result.after[key], weight) for key, weight in plain.items()
        )
        assert is_plain == (name in ("loss ppo", "ppo, token_mean")), name
        assert sum(map(result.update_norm, result.after)) > 1e-4, name


async def test_ranks_without_images_equal_one(pool: _Pool, images: tuple[Path, list[Sample], Result]):
    model, samples, expected = images
    for once in (False, True):
        layout = Layout(RANKS, {"gather_once": once, "token_budget": 200})
        assert_equal(await compute(model, Case(), samples, layout, pool.of(RANKS)), expected)


@MEETINGS
async def test_a_reference_that_follows_the_policy_on_ranks_equals_that_on_one(
    options: dict[str, object], model: Path, pool: _Pool, moving: tuple[list[Sample], Result], tmp_path: Path
):
    samples, expected = moving
    layout, ranks = Layout(RANKS, {"token_budget": 80, **options}), pool.of(RANKS)
    assert_equal(await compute(model, _MOVING, samples, layout, ranks), expected)
    config = learner_config(model, kl_coef=0.3, reference_every=2, token_budget=80, **options)
    learner, resumed = create(config, ranks), create(config, ranks)
    for _ in range(3):
        learner.step(_batch())
    learner.save(tmp_path / "state")
    resumed.load(tmp_path / "state")
    for got, want in zip(resumed.reference_logprobs(samples), learner.reference_logprobs(samples), strict=True):
        np.testing.assert_array_equal(got, want)


@MEETINGS
def test_ranks_write_a_state_while_they_train_and_resume_from_it(
    options: dict[str, object], model: Path, pool: _Pool, tmp_path: Path
):
    """Neither may wait for the other; and a model is saved as transformers loads it."""
    config, ranks = learner_config(model, **options, token_budget=60, lora={"rank": 4}), pool.of(RANKS)
    learner = create(config, ranks)
    learner.step(_batch())
    captured = learner.capture()
    writing = Thread(target=captured.write, args=(tmp_path / "state",))
    writing.start()
    expected = [learner.step(_batch(seed))["loss"] for seed in (1, 2)]
    writing.join()
    resumed = create(config, ranks)
    resumed.load(tmp_path / "state")
    assert [resumed.step(_batch(seed))["loss"] for seed in (1, 2)] == expected
    resumed.save_hf(tmp_path / "hf")
    saved = create(learner_config(tmp_path / "hf", token_budget=60), ranks)
    for got, want in zip(saved.logprobs(_batch().samples), resumed.logprobs(_batch().samples), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@MEETINGS
def test_ranks_refuse_a_model_together(options: dict[str, object], pool: _Pool, tmp_path: Path):
    folder = save_small_model("phimoe", tmp_path)
    with pytest.raises(UserError, match="PhimoeAttention"):
        create(learner_config(folder, **options), pool.of(RANKS))


def test_ranks_gather_repeated_layers_for_every_micro_batch(pool: _Pool, tmp_path: Path):
    """Once per mini-batch, ranks with different numbers of micro-batches would wait for each other."""
    folder = save_small_model("hrm_text", tmp_path)
    with pytest.raises(UserError, match="runs its layers several times in one pass"):
        create(learner_config(folder, gather_once=True), pool.of(RANKS))


def test_indivisible_head_count_raises_with_the_numbers(tiny_qwen3, pool: _Pool):
    folder = tiny_qwen3(num_attention_heads=6, num_key_value_heads=3)
    with pytest.raises(UserError, match=r"cannot divide 6 heads and 3 key-value heads. This model supports 3, 6\."):
        create(learner_config(folder, sequence_parallel=4), pool.of(RANKS))
    with pytest.raises(UserError, match=r"sequence_parallel is 3 but learner.ranks is 4"):
        create(learner_config(folder, sequence_parallel=3), pool.of(RANKS))


@pytest.fixture(scope="module")
def learner(sums_model: Path, pool: _Pool) -> RankedLearner:
    found = create(_config(sums_model), pool.of(RANKS))
    assert isinstance(found, RankedLearner)
    return found


def test_a_user_error_of_every_rank_is_raised_once_and_training_continues(learner: RankedLearner):
    with pytest.raises(UserError, match=r"300 tokens, more than the token_budget of 256"):
        learner.step(_random_batch(2, lengths=(300, 301)))
    assert learner.step(_batch())["updates"] == 1


async def test_ranks_publish_whole_weights_also_after_an_engine_refused_them(learner: RankedLearner, tmp_path: Path):
    first, second = _Taker(most=2), _Taker()
    with pytest.raises(ValueError, match="full"):
        await learner.publish(first, 1)  # type: ignore[arg-type]
    await learner.publish(second, 1)  # type: ignore[arg-type]
    learner.save_hf(tmp_path / "hf")
    saved = load_file(tmp_path / "hf" / "model.safetensors")
    assert len(second.parts) == RANKS
    assert second.weights.keys() == saved.keys() - {"lm_head.weight"}  # tied: it is the embedding
    for name, tensor in second.weights.items():
        assert torch.equal(saved[name], tensor), name


def test_a_critic_trains_on_the_ranks_of_the_policy(learner: RankedLearner, sums_model: Path, tmp_path: Path):
    pids = descendants(os.getpid(), RANK)
    critic = create_critic(_config(sums_model, loss="value", lr=1e-2), learner.ranks)
    samples = [replace(sample, old_logprobs=np.zeros(sample.num_sampled, np.float32)) for sample in _batch().samples]
    before = critic.step(TrainBatch(samples))["loss"]
    critic.save(tmp_path / "critic")
    for _ in range(3):
        critic.step(TrainBatch(samples))
    assert critic.step(TrainBatch(samples))["loss"] < before
    critic.load(tmp_path / "critic")
    values = critic.logprobs(samples)
    assert [len(part) for part in values] == [sample.num_sampled for sample in samples]
    critic.close()
    critic.close()
    assert descendants(os.getpid(), RANK) == pids
    assert learner.step(_batch())["updates"] == 1


def _read(objects: Objects, batch: TrainBatch, folder: Path) -> None:
    array = batch.samples[0].token_ids
    if dist.get_rank() == 1:
        (folder / "rank").write_text(f"{array.sum()} {array.flags.owndata or array.base.flags.owndata}")


def test_arrays_of_a_batch_reach_ranks_without_a_copy(learner: RankedLearner, tmp_path: Path):
    batch = _batch()
    learner.ranks.run(_read, batch, tmp_path)
    assert (tmp_path / "rank").read_text() == f"{batch.samples[0].token_ids.sum()} False"


def test_a_process_has_ranks_of_one_kind_only(learner: RankedLearner, sums_model: Path):
    with pytest.raises(UserError, match=r"already has a learner with several ranks.*Close that learner first"):
        create(_config(sums_model, ranks=2))
    assert learner.step(_batch())["updates"] == 1


class _Taker:
    """An engine that keeps copies of what it is given, and may refuse it half way."""

    def __init__(self, most: int | None = None) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.parts: tuple[object, ...] = ()
        self._most = most

    async def update_weights(self, weights, version: int) -> None:
        self.parts = weights.share(False).parts
        for name, tensor in weights.tensors():
            if len(self.weights) == self._most:
                raise ValueError("full")
            self.weights[name] = tensor.clone()
