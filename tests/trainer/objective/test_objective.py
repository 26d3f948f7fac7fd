import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError, WrongTypeError
from agentloop.trainer import losses
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.objective.objective import Objective
from tests.support.tokens import doubles, tokens


def _objective(**options):
    return Objective(LearnerConfig(model="", **options))


def _gradient(objective, logprobs, entropy, known):
    logprobs, entropy = doubles(logprobs).requires_grad_(), doubles(entropy).requires_grad_()
    loss, metrics = objective(logprobs, entropy, known)
    by_logprob, by_entropy = torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True)
    return loss.item(), by_logprob, by_entropy, metrics


def test_kl_and_entropy_are_added_to_the_loss_of_each_token():
    known = tokens([2], advantages=[1.0, -1.0], weights=[0.5, 0.25], reference=[-1.0, -2.0], rollout=[-1.5, -1.0])
    objective = _objective(loss="reinforce", kl_coef=0.1, kl_estimator="k2", entropy_bonus=0.01)
    loss, by_logprob, by_entropy, metrics = _gradient(objective, [-1.5, -1.0], [2.0, 3.0], known)
    expected = 0.5 * (1.5 + 0.1 * 0.125 - 0.02) + 0.25 * (-1.0 + 0.1 * 0.5 - 0.03)
    assert loss == pytest.approx(expected)
    np.testing.assert_allclose(by_logprob, [0.5 * (-1 + 0.1 * -0.5), 0.25 * (1 + 0.1 * 1.0)])
    np.testing.assert_allclose(by_entropy, [-0.005, -0.0025])
    np.testing.assert_allclose(metrics["reference_kl"], [0.125, 0.5])
    assert objective.needs_reference
    assert not objective.is_zero_without_advantage


def test_decoupled_ppo_by_hand():
    """Clip the ratio to the weights before the batch; weight by those over the sampling policy (arXiv 2505.24298)."""
    known = tokens([1], advantages=[1.0], rollout=[-2.0], old=[-1.0])
    correct = [{"name": "truncate", "options": {"cap": 5.0}}]
    objective = _objective(mini_batches=2, corrections=correct, loss_options={"clip_high": 0.2})
    assert objective.needs_old_logprobs
    loss, by_logprob, _, metrics = _gradient(objective, [-0.9], [0.0], known)
    # Ratio e^0.1 within 1.2; weight e^1.
    assert loss == pytest.approx(-math.exp(0.1) * math.e)
    assert by_logprob.item() == pytest.approx(-math.exp(0.1) * math.e)
    assert metrics["importance_weight"].item() == pytest.approx(math.e)
    loss, by_logprob, _, _ = _gradient(objective, [-0.5], [0.0], known)
    assert (loss, by_logprob.item()) == (pytest.approx(-1.2 * math.e), 0.0)


_COMPARES = [name for name in losses.names() if losses.get(name).on_policy]


@pytest.mark.parametrize("loss", _COMPARES)
def test_tokens_sampled_from_a_cut_distribution_keep_their_gradient_with_a_correction(loss):
    """With top_p 0.7 the engine reports logprobs above the learner's by -log 0.7: a weight of 0.7, and no clipping."""
    policy = [-1.0, -0.5, -2.0]
    cut = [value - math.log(0.7) for value in policy]
    uncut = tokens([2, 1], advantages=[1.0, 1.0, -1.0], rollout=policy)
    known = tokens([2, 1], advantages=[1.0, 1.0, -1.0], rollout=cut)
    _, expected, _, _ = _gradient(_objective(loss=loss), policy, [0.0] * 3, uncut)
    _, found, _, _ = _gradient(_objective(loss=loss, corrections=["truncate"]), policy, [0.0] * 3, known)
    assert expected.all()
    np.testing.assert_allclose(found, 0.7 * expected, rtol=1e-6)
    if loss == "ppo":
        _, clipped, _, _ = _gradient(_objective(loss=loss), policy, [0.0] * 3, known)
        assert clipped[2] == 0, "the negative token is lost without a correction"


def test_interpolated_old_logprobs_need_no_pass():
    known = tokens([1], advantages=[1.0], rollout=[-2.0], ages=[1])
    objective = _objective(mini_batches=2, old_logprobs="interpolated", corrections=["truncate"])
    assert not objective.needs_old_logprobs
    loss, _, _, metrics = _gradient(objective, [-1.8], [0.0], known)
    # The old logprob is halfway, at -1.9.
    assert metrics["ratio"].item() == pytest.approx(math.exp(0.1))
    assert metrics["importance_weight"].item() == pytest.approx(math.exp(0.1))
    assert loss == pytest.approx(-math.exp(0.2))


def test_the_weights_of_several_corrections_are_multiplied():
    known = tokens([1, 1], advantages=[1.0, 1.0], rollout=[-1.0, -1.5])
    correct = ["truncate", {"name": "reject", "options": {"low": 0.9, "high": 1.1}}]
    _, _, _, metrics = _gradient(_objective(corrections=correct), [-1.05, -1.0], [0.0, 0.0], known)
    np.testing.assert_allclose(metrics["importance_weight"], [math.exp(-0.05), 0.0])
    assert metrics["rejected"].tolist() == [0.0, 1.0]


_SETTINGS = [{"loss": name} for name in losses.names()] + [
    {"loss": "gspo", "corrections": ["truncate", "veto"]},
    {"corrections": [{"name": "mask", "options": {"level": "sequence", "high": 50.0}}], "kl_coef": 0.3},
    {"corrections": ["reject", "icepop"], "old_logprobs": "interpolated", "entropy_bonus": 0.1},
]


@pytest.mark.parametrize("settings", _SETTINGS)
def test_loss_and_gradient_do_not_depend_on_packing_and_order(settings):
    rng = np.random.default_rng(0)
    samples = [_sample(rng, count) for count in (5, 1, 9, 3, 7)]
    logprobs = [sample.logprobs[sample.loss_mask] + rng.normal(0, 0.1, sample.num_sampled) for sample in samples]
    objective = _objective(**settings)
    weights = objective.weights(samples)

    def evaluate(plan):
        total, found = 0.0, {}
        for row in plan:
            known = TrainedTokens.of([samples[i] for i in row], weights[row], torch.device("cpu"))
            values = torch.from_numpy(np.concatenate([logprobs[i] for i in row])).requires_grad_()
            loss, _ = objective(values, torch.ones(len(values)), known)
            loss.backward()
            total += loss.item()
            found |= dict(zip(row, values.grad.split([samples[i].num_sampled for i in row]), strict=True))
        return total, torch.cat([found[i] for i in range(len(samples))])

    loss, gradient = evaluate([[0, 1, 2, 3, 4]])
    for plan in ([[4, 2, 0], [3, 1]], [[0], [1], [2], [3], [4]]):
        other_loss, other_gradient = evaluate(plan)
        assert other_loss == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(other_gradient, gradient, rtol=1e-5, atol=1e-9)
    assert gradient.abs().max() > 0


def _sample(rng, count):
    mask = np.array([False] + [True, False] * count)
    logprobs = np.where(mask, rng.uniform(-3, -1, len(mask)), 0).astype(np.float32)
    return Sample(
        token_ids=np.zeros(len(mask), np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        versions=np.where(mask, rng.integers(0, 3, len(mask)), -1).astype(np.int32),
        advantage=rng.normal(size=count).astype(np.float32) if count > 5 else float(rng.normal()),
        reference_logprobs=(logprobs[mask] - 0.1).astype(np.float32),
        rival=0.5,
        policy_version=2,
    )


@pytest.mark.parametrize("settings", [item for item in _SETTINGS if _objective(**item).is_tokenwise])
def test_tokenwise_objectives_may_be_computed_in_pieces(settings):
    objective = _objective(**settings)
    rng = np.random.default_rng(1)
    known = TrainedTokens.of([_sample(rng, 6), _sample(rng, 4)], [0.1, 0.2], torch.device("cpu"))
    logprobs = known.rollout_logprobs + 0.1 * torch.randn(10, generator=torch.Generator().manual_seed(0))
    whole, _ = objective(logprobs, torch.ones(10), known)
    rows = (slice(0, 3), slice(3, 8), slice(8, 10))
    pieces = [objective(logprobs[part], torch.ones(10)[part], known.rows(part))[0] for part in rows]
    assert sum(pieces).item() == pytest.approx(whole.item(), rel=1e-5)


def test_which_objectives_need_whole_trajectories():
    assert {name for name in losses.names() if not _objective(loss=name).is_tokenwise} == {
        "gspo",
        "gmpo",
        "implicit_reward",
        "dpo",
    }
    assert _objective(corrections=["truncate", "icepop"]).is_tokenwise
    assert not _objective(corrections=["truncate", "reject"]).is_tokenwise


def test_trained_tokens_of_samples():
    sample = Sample(
        token_ids=np.zeros(4, np.int32),
        loss_mask=np.array([False, True, False, True]),
        logprobs=np.array([0, -1, 0, -2], np.float32),
        versions=np.array([-1, 3, -1, 6], np.int32),
        advantage=np.array([0.5, -0.5], np.float32),
        policy_version=5,
    )
    plain = Sample(sample.token_ids, sample.loss_mask, sample.logprobs, sample.versions, advantage=2.0)
    known = TrainedTokens.of([sample, plain], [0.1, 0.2], torch.device("cpu"))
    assert known.advantages.tolist() == [0.5, -0.5, 2.0, 2.0]
    assert known.ages.tolist() == [2, 0, 0, 0]  # never below 0
    assert known.sequences.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(known.weights, [0.1, 0.1, 0.2, 0.2], rtol=1e-6)
    assert known.rollout_logprobs.tolist() == [-1, -2, -1, -2]
    assert known.old_logprobs is None


def test_contradictory_settings_are_refused():
    with pytest.raises(UserError, match="old_logprobs=rollout the two are the same"):
        _objective(corrections=["truncate"], old_logprobs="rollout")
    with pytest.raises(UserError, match="loss=sft does not"):
        _objective(corrections=["truncate"], loss="sft")
    with pytest.raises(UserError, match=r"no correction 'truncat'.*Did you mean 'truncate'"):
        _objective(corrections=["truncat"])


def test_the_default_aggregation_is_that_of_the_paper():
    samples = [_sample(np.random.default_rng(0), count) for count in (1, 3)]
    assert _objective().weights(samples).tolist() == [0.25, 0.25]
    assert _objective(loss="gspo").weights(samples).tolist() == pytest.approx([1 / 2, 1 / 6])
    assert _objective(loss="gspo", aggregation="token_mean").weights(samples).tolist() == [0.25, 0.25]


_RETURNED = {
    "a mean": lambda logprobs: (logprobs.mean(), {}),
    "no metrics": lambda logprobs: logprobs,
    "a number as metric": lambda logprobs: (logprobs, {"mine": 3.0}),
    "a mean as metric": lambda logprobs: (logprobs, {"mine": logprobs.mean()}),
}


@pytest.mark.parametrize("returned", _RETURNED)
def test_a_loss_of_the_user_must_return_tensors_of_all_tokens(returned):
    """A mean would be broadcast to all tokens, so that the loss would depend on the micro-batches."""

    def mine(logprobs, old_logprobs, tokens, options):
        return _RETURNED[returned](logprobs)

    objective = _objective()
    objective.loss = replace(objective.loss, function=mine)
    with pytest.raises(WrongTypeError, match=r"^mine \(test_objective.py, line \d+\) returned "):
        objective(doubles([-1.0, -2.0]), doubles([0.0, 0.0]), tokens([2]))
