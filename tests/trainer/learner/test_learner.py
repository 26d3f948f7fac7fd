import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.making import make_batch
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.learner.micro_batch import MicroBatch
from agentloop.trainer.losses import Aggregation
from agentloop.trainer.run.learners import create
from agentloop.types.trajectory import SegmentKind, Trajectory

_VOCAB = 64
_TRUNCATED = ({"name": "truncate", "options": {"cap": 2.0}},)


@pytest.fixture(scope="module")
def model_folder(tiny_qwen3) -> Path:
    return tiny_qwen3()


def _sample(rng: np.random.Generator, length: int, advantage: float) -> Sample:
    mask = rng.random(length) < 0.5
    mask[0], mask[-1] = False, True
    return Sample(
        token_ids=rng.integers(0, _VOCAB, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, rng.uniform(-4.6, -3.6, length), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        advantage=advantage,
    )


def _batch(seed: int = 0, advantages: tuple[float, ...] = (1.0, -0.5, 0.7, -1.2, 0.3)) -> TrainBatch:
    rng = np.random.default_rng(seed)
    return TrainBatch([_sample(rng, int(rng.integers(4, 40)), advantage) for advantage in advantages])


def _weights(learner: FsdpLearner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.weights()}


def _plain(model_folder: Path, **options: object) -> LearnerConfig:
    """Make the update g / (|g| + 1), smooth in the gradient: equal weights then mean equal gradients."""
    values: dict[str, object] = {"lr": 1.0, "eps": 1.0, "grad_clip": None, **options}
    return LearnerConfig(model=str(model_folder), device="cpu", **values)  # type: ignore[arg-type]


def _assert_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-4, atol=2e-6, msg=lambda text, name=name: name + text)


def test_a_micro_batch_by_hand():
    def sample(ids: list[int], mask: list[int], logprobs: list[float], advantage: float) -> Sample:
        versions = np.full(len(ids), -1, np.int32)
        return Sample(
            np.array(ids, np.int32), np.array(mask, bool), np.array(logprobs, np.float32), versions, advantage
        )

    first = sample([10, 11, 12, 13, 14], [0, 0, 1, 1, 0], [0, 0, -1, -2, 0], 0.5)
    second = sample([20, 21, 22], [0, 1, 1], [0, -3, -4], -0.5)
    micro = MicroBatch.of([first, second], [0.25, 0.125], torch.device("cpu"))
    assert micro.input_ids.tolist() == [[10, 11, 12, 13, 14, 20, 21, 22]]
    assert micro.row.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert micro.positions.tolist() == [1, 2, 5, 6]  # the token before each sampled one predicts it
    assert micro.targets.tolist() == [12, 13, 21, 22]
    assert micro.tokens.rollout_logprobs.tolist() == [-1, -2, -3, -4]
    assert micro.tokens.advantages.tolist() == [0.5, 0.5, -0.5, -0.5]
    assert micro.tokens.weights.tolist() == [0.25, 0.25, 0.125, 0.125]


@pytest.mark.parametrize("aggregation", list(Aggregation))
@pytest.mark.parametrize("loss", ["ppo", "sft"])
def test_one_step_equals_plain_transformers(model_folder: Path, aggregation: Aggregation, loss: str):
    batch = _batch()
    learner = create(_plain(model_folder, aggregation=aggregation, aggregation_norm=7.0, temperature=0.8, loss=loss))
    metrics = learner.step(batch)

    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    losses = []
    for sample in batch.samples:
        ids = torch.from_numpy(sample.token_ids).long()
        log_p = torch.log_softmax(model(input_ids=ids[None]).logits[0] / 0.8, dim=-1)
        chosen = log_p[:-1].gather(1, ids[1:, None]).squeeze(1)[torch.from_numpy(sample.loss_mask[1:])]
        old = torch.from_numpy(sample.logprobs[sample.loss_mask])
        ratio = (chosen - old).exp()
        bounded = torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.28) * sample.advantage)
        if sample.advantage < 0:
            bounded = bounded.clamp(min=3.0 * sample.advantage)
        losses.append(-bounded if loss == "ppo" else -chosen)
    want = {
        Aggregation.TOKEN_MEAN: torch.cat(losses).mean(),
        Aggregation.SEQ_MEAN_TOKEN_SUM: torch.stack([part.sum() for part in losses]).mean(),
        Aggregation.SEQ_MEAN_TOKEN_MEAN: torch.stack([part.mean() for part in losses]).mean(),
        Aggregation.SEQ_MEAN_TOKEN_SUM_NORM: torch.stack([part.sum() / 7.0 for part in losses]).mean(),
    }[aggregation]
    want.backward()
    assert metrics["loss"] == pytest.approx(want.item(), rel=1e-4)
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    _assert_close(
        _weights(learner),
        {name: (p - p.grad / (p.grad.abs() + 1.0)).detach() for name, p in model.named_parameters()},
    )


@pytest.mark.parametrize(
    "options",
    [
        {"token_budget": 40},
        {"token_budget": 40, "gather_once": True},
        {"checkpointing": "full"},
        {"checkpointing": "full", "gather_once": False},
        {"checkpointing": "selective"},
        {"checkpointing": "sparse", "token_budget": 40},
    ],
)
def test_the_update_does_not_depend_on_how_it_was_planned(model_folder: Path, options: dict[str, object]):
    batch = _batch(advantages=(1.0, -0.5, 0.7, -1.2, 0.3, 0.0, 0.0))
    whole = create(_plain(model_folder))
    split = create(_plain(model_folder, skip_zero_advantage=False, **options))
    order = np.random.default_rng(1).permutation(len(batch))
    want = whole.step(batch)
    got = split.step(TrainBatch([batch.samples[index] for index in order]))
    for name in ("loss", "grad_norm"):
        assert got[name] == pytest.approx(want[name], rel=1e-4)
    _assert_close(_weights(split), _weights(whole))
    # Without advantage there is no gradient: the passes were saved.
    lengths = [len(sample) for sample in batch.samples]
    assert (want["computed_tokens"], got["computed_tokens"]) == (sum(lengths[:5]), sum(lengths))


def test_mini_batches_train_every_sample_once(model_folder: Path):
    batch = _batch()
    learner = create(_plain(model_folder, mini_batches=2, lr=1e-3))
    metrics = learner.step(batch)
    assert metrics["updates"] == 2
    assert metrics["computed_tokens"] == metrics["num_tokens"] == batch.num_tokens
    parts = learner.mini_batches(batch.samples[:5])
    assert sorted(index for part in parts for index in part) == [0, 1, 2, 3, 4]
    assert len(learner.mini_batches(batch.samples[:1])) == 1
    streams = [replace(sample, episode=number) for sample, number in zip(batch.samples, (0, 1, 1, 1, 2), strict=False)]
    parts = learner.mini_batches(streams)
    assert sorted(map(len, parts)) in ([1, 4], [2, 3]), "the streams of an episode are in one update"
    assert [part for part in parts if {1, 2, 3} <= set(part)]


def _with_logprobs(learner: FsdpLearner, batch: TrainBatch, shift: float) -> TrainBatch:
    """Return the batch with rollout logprobs that are the learner's plus a shift."""
    samples = []
    for sample, values in zip(batch.samples, learner.logprobs(batch.samples), strict=True):
        logprobs = np.zeros(len(sample), np.float32)
        logprobs[sample.loss_mask] = values + shift
        samples.append(Sample(sample.token_ids, sample.loss_mask, logprobs, sample.versions, sample.advantage))
    return TrainBatch(samples)


def test_logprobs_are_compared_with_those_of_the_engine(model_folder: Path):
    learner = create(_plain(model_folder, token_budget=40, lr=0.3, mini_batches=2))
    metrics = learner.step(_with_logprobs(learner, _batch(), 0.0))
    # The second update moved away from the weights that sampled, and is not compared.
    assert metrics["logprob_diff_max"] < 1e-5
    assert metrics["approx_kl"] > 1e-6
    metrics = learner.step(_with_logprobs(learner, _batch(), 0.25))
    assert metrics["logprob_diff"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["logprob_diff_max"] == pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_importance_sampling_corrects_for_the_engine(model_folder: Path, mini_batches: int):
    corrected = create(_plain(model_folder, corrections=_TRUNCATED, mini_batches=mini_batches))
    plain = create(_plain(model_folder, mini_batches=mini_batches))
    batch = _batch()
    # The engine gave every token e^-0.4 of its probability: each counts e^0.4 times, which scales the loss.
    got = corrected.step(_with_logprobs(corrected, batch, -0.4))
    assert got["importance_weight"] == pytest.approx(np.exp(0.4), rel=1e-3)
    if mini_batches == 1:
        want = plain.step(_with_logprobs(plain, batch, 0.0))
        assert got["grad_norm"] == pytest.approx(want["grad_norm"] * np.exp(0.4), rel=1e-3)
        assert got["ratio"] == pytest.approx(1.0)
    capped = create(_plain(model_folder, corrections=_TRUNCATED))
    assert capped.step(_with_logprobs(capped, batch, -5.0))["importance_weight"] == 2.0


def test_kl_to_the_model_that_it_started_from(model_folder: Path):
    learner = create(_plain(model_folder, kl_coef=0.5, kl_estimator="k3", lr=0.3, loss="reinforce"))
    silent = _batch(advantages=(0.0, 0.0, 0.0))
    np.testing.assert_allclose(
        np.concatenate(learner.reference_logprobs(silent.samples)), np.concatenate(learner.logprobs(silent.samples))
    )
    first = learner.step(silent)
    # While the model equals its reference, the KL and its gradient are 0.
    assert first["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["grad_norm"] == pytest.approx(0.0, abs=1e-5)
    before = learner.reference_logprobs(silent.samples)
    learner.step(_batch())
    moved = learner.step(silent)
    assert moved["reference_kl"] > 1e-4
    assert moved["loss"] == pytest.approx(0.5 * moved["reference_kl"], rel=1e-4)
    assert learner.step(silent)["reference_kl"] < moved["reference_kl"]
    np.testing.assert_array_equal(np.concatenate(learner.reference_logprobs(silent.samples)), np.concatenate(before))
    with pytest.raises(UserError, match="no reference model"):
        create(_plain(model_folder)).reference_logprobs(silent.samples)


@pytest.mark.parametrize("loss", ["gspo", "gmpo", "cispo", "sapo", "reinforce"])
def test_every_loss_trains_the_same_however_planned(model_folder: Path, loss: str):
    corrected = {"loss": loss, "corrections": ("truncate", {"name": "veto"}), "mini_batches": 2}
    batch = _batch()
    whole, split = create(_plain(model_folder, **corrected)), create(_plain(model_folder, token_budget=40, **corrected))
    close = _with_logprobs(whole, batch, 0.05)
    want, got = whole.step(close), split.step(close)
    for name in ("loss", "grad_norm", "importance_weight"):
        assert got[name] == pytest.approx(want[name], rel=1e-4)
    _assert_close(_weights(split), _weights(whole))


def test_an_update_that_is_not_finite_is_skipped_counted_and_names_its_trajectories(
    model_folder: Path, caplog: pytest.LogCaptureFixture
):
    learner = create(_plain(model_folder))
    before = _weights(learner)
    batch = _batch(advantages=(1.0, float("inf")))
    named = [replace(sample, trajectory_id=f"episode-{number}") for number, sample in enumerate(batch.samples)]
    metrics = learner.step(TrainBatch(named))
    assert "Skipped an update" in caplog.text
    assert "episode-1" in caplog.text
    assert (metrics["updates"], metrics["updates_skipped"], metrics["updates_skipped_total"]) == (0, 1, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in _weights(learner).items())
    metrics = learner.step(_batch())
    assert (metrics["updates"], metrics["updates_skipped"], metrics["updates_skipped_total"]) == (1, 0, 1)
    assert not torch.equal(_weights(learner)["model.norm.weight"], before["model.norm.weight"])


def test_an_empty_batch_changes_nothing(model_folder: Path):
    learner = create(_plain(model_folder))
    before = _weights(learner)
    metrics = learner.step(TrainBatch([]))
    assert (metrics["updates"], metrics["num_tokens"]) == (0, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in _weights(learner).items())


def test_bfloat16_compute_comes_near_float32(model_folder: Path):
    exact, rough = create(_plain(model_folder)), create(_plain(model_folder, compute_dtype="bfloat16"))
    want, got = exact.step(_batch()), rough.step(_batch())
    assert got["loss"] == pytest.approx(want["loss"], abs=0.02)
    assert got["grad_norm"] == pytest.approx(want["grad_norm"], rel=0.05)
    assert {tensor.dtype for tensor in _weights(rough).values()} == {torch.bfloat16}


class _Engine:
    async def update_weights(self, weights, version: int) -> None:
        self.weights, self.version = dict(weights.tensors()), version


def test_published_weights_have_their_names_and_tied_ones_come_once(model_folder: Path):
    learner, engine = create(_plain(model_folder)), _Engine()
    learner.step(_batch())
    asyncio.run(learner.publish(engine, 7))  # type: ignore[arg-type]
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    assert engine.version == 7
    assert list(engine.weights) == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in engine.weights
    model.load_state_dict(engine.weights, strict=False)
    ids = torch.from_numpy(_batch().samples[0].token_ids).long()
    log_p = torch.log_softmax(model(input_ids=ids[None]).logits[0], dim=-1)[:-1].gather(1, ids[1:, None]).squeeze(1)
    want = log_p.detach()[torch.from_numpy(_batch().samples[0].loss_mask[1:])]
    got = learner.logprobs(_batch().samples)[0]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_grpo_on_a_bandit_finds_the_arm_that_pays(model_folder: Path):
    learner = create(LearnerConfig(model=str(model_folder), device="cpu", lr=5e-3))
    rng, arms, good = np.random.default_rng(0), [3, 17, 40, 55], 17

    def pull(arm: int, logprob: float) -> Trajectory:
        trajectory = Trajectory(reward=float(arm == good))
        trajectory.append(SegmentKind.PROMPT, [1, 2])
        trajectory.append(SegmentKind.SAMPLED, [arm], logprobs=[logprob], versions=[0])
        return trajectory

    def logprobs() -> np.ndarray:
        return np.concatenate(learner.logprobs([Sample.from_trajectory(pull(arm, 0.0)) for arm in arms]))

    before = np.exp(logprobs())
    for _ in range(15):
        known = logprobs()
        chances = np.exp(known) / np.exp(known).sum()
        pulled = rng.choice(len(arms), size=16, p=chances)
        learner.step(make_batch([[pull(arms[arm], known[arm]) for arm in pulled]]))
    after = np.exp(logprobs())
    assert before[1] < 0.1
    assert after[1] > 10 * before[1]
    assert after[1] / after.sum() > 0.95


def test_the_schedule_reaches_the_optimizer(model_folder: Path):
    learner = create(_plain(model_folder, lr=0.5, warmup_updates=1))
    assert [learner.step(_batch())["lr"] for _ in range(2)] == [0.25, 0.5]


def test_errors_name_unusable_settings_and_models(model_folder: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"no config\.json"):
        create(LearnerConfig(model=str(tmp_path)))
    with pytest.raises(UserError, match="no loss 'pop'"):
        create(LearnerConfig(model=str(model_folder), loss="pop"))
    with pytest.raises(UserError, match=r"needs learner\.total_updates"):
        create(LearnerConfig(model=str(model_folder), lr_schedule="cosine"))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UserError, match="cannot be loaded"):
        create(LearnerConfig(model=str(tmp_path)))
    learner = create(_plain(model_folder, token_budget=8))
    with pytest.raises(UserError, match="Set token_budget to at least"):
        learner.step(_batch())


def _groups(rng: np.random.Generator) -> TrainBatch:
    """Return two groups of three trajectories with a common prompt each, and one more trajectory."""
    samples = []
    for group in ("a", "b"):
        prompt = _sample(rng, 20, 0.0)
        for advantage in (1.0, -0.5, 0.8):
            own = _sample(rng, int(rng.integers(3, 12)), advantage)
            own.loss_mask[0] = True
            samples.append(
                Sample(
                    token_ids=np.concatenate([prompt.token_ids, own.token_ids]),
                    loss_mask=np.concatenate([np.zeros(20, bool), own.loss_mask]),
                    logprobs=np.concatenate([np.zeros(20, np.float32), np.where(own.loss_mask, -4.0, 0)]).astype(
                        np.float32
                    ),
                    versions=np.concatenate([np.full(20, -1), np.where(own.loss_mask, 0, -1)]).astype(np.int32),
                    advantage=advantage,
                    group_id=group,
                )
            )
    return TrainBatch([*samples, _sample(rng, 30, 0.4)])


@pytest.mark.parametrize("options", [{}, {"loss": "gspo"}, {"token_budget": 45}])
def test_sharing_the_prompt_of_a_group_changes_nothing_but_the_tokens_computed(
    model_folder: Path, options: dict[str, object]
):
    batch = _groups(np.random.default_rng(0))
    plain = FsdpLearner(_plain(model_folder, share_prefixes=False, **options))
    shared = FsdpLearner(_plain(model_folder, share_prefixes=True, **options))
    for got, want in zip(shared.logprobs(batch.samples), plain.logprobs(batch.samples), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    want, got = plain.step(batch), shared.step(batch)
    assert got["loss"] == pytest.approx(want["loss"], rel=1e-5, abs=1e-6)
    assert want["computed_tokens"] == batch.num_tokens
    assert got["computed_tokens"] < 0.8 * want["computed_tokens"]
    _assert_close(_weights(shared), _weights(plain))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"use_sliding_window": True, "max_window_layers": 1}, {"share_prefixes": True}, "cannot share a prompt"),
        ({}, {"refine_costs": True, "gather_once": False}, r"Set learner\.gather_once=true"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tiny_qwen3, model: dict, options: dict, message: str):
    with pytest.raises(UserError, match=message):
        create(_plain(tiny_qwen3(**model), **options))


def test_an_update_that_failed_leaves_no_gradients(model_folder: Path, monkeypatch: pytest.MonkeyPatch):
    batch = _batch()
    untroubled, troubled = (create(_plain(model_folder, token_budget=40)) for _ in range(2))
    forward, calls = troubled.policy.forward, []

    def fails_once(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("as on a GPU")
        return forward(*args, **kwargs)

    monkeypatch.setattr(troubled.policy, "forward", fails_once)
    with pytest.raises(torch.OutOfMemoryError):
        troubled.step(batch)
    assert troubled.step(batch)["grad_norm"] == pytest.approx(untroubled.step(batch)["grad_norm"], rel=1e-6)
