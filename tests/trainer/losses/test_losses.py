import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentloop.config.learner import KlEstimator
from agentloop.errors import UserError
from agentloop.trainer import losses
from agentloop.trainer.losses import Aggregation, token_weights
from agentloop.trainer.losses.divergence import DppoOptions
from agentloop.trainer.losses.sequence_ratio import GmpoOptions, GspoOptions
from agentloop.trainer.losses.supervised import ImplicitRewardOptions, ValueOptions
from agentloop.trainer.losses.token_ratio import CispoOptions, PpoOptions, SapoOptions
from agentloop.trainer.objective.kl import kl_estimate
from tests.support.tokens import doubles, tokens

_RATIOS = [1.0, 1.5, 1.5, 0.5, 0.5, 4.0]
_ADVANTAGES = [2.0, 1.0, -1.0, 1.0, -1.0, -1.0]


def _evaluate(name, ratios, advantages, options=None, counts=None):
    """Return loss, gradient by log-probability and metrics of each token; all old log-probabilities are -1."""
    old = doubles([-1.0] * len(ratios))
    new = (old + doubles(ratios).log()).requires_grad_()
    known = tokens(counts or [len(ratios)], advantages=advantages)
    loss, metrics = losses.get(name).function(new, old, known, options or losses.get(name).options())
    loss.sum().backward()
    return loss.tolist(), new.grad.tolist(), {key: value.tolist() for key, value in metrics.items()}


def test_ppo_by_hand():
    options = PpoOptions(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    loss, grad, metrics = _evaluate("ppo", _RATIOS, _ADVANTAGES, options)
    # Positive advantages clip at 1.3, negative ones at 0.8; dual clip bounds the last token at 3.
    np.testing.assert_allclose(loss, [-2.0, -1.3, 1.5, -0.5, 0.8, 3.0])
    # d(-A r)/d logp = -A r if not clipped.
    np.testing.assert_allclose(grad, [-2.0, 0.0, 1.5, -0.5, 0.0, 0.0], atol=1e-12)
    assert metrics["clip_fraction"] == [0, 1, 0, 0, 1, 0]
    assert metrics["dual_clip_fraction"] == [0, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(metrics["ratio"], _RATIOS)
    np.testing.assert_allclose(metrics["approx_kl"], [r - 1 - math.log(r) for r in _RATIOS], atol=1e-12)


def test_without_dual_clip_a_negative_advantage_has_no_bound():
    loss, grad, metrics = _evaluate("ppo", [4.0], [-1.0], PpoOptions(dual_clip=None))
    assert (round(loss[0], 6), round(grad[0], 6)) == (4.0, 4.0)
    assert "dual_clip_fraction" not in metrics


def test_a_ratio_that_float32_cannot_hold_does_not_make_the_loss_infinite():
    new = torch.zeros(1, requires_grad=True)
    known = tokens([1], advantages=[1.0])
    loss, _ = losses.get("ppo").function(new, torch.full((1,), -200.0), known, PpoOptions())
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert new.grad.tolist() == [0.0]


def test_cispo_by_hand():
    loss, grad, metrics = _evaluate("cispo", [0.1, 1.0, 4.0], [1.0, -1.0, 2.0], CispoOptions(clip_low=0.5, clip_high=1))
    # The weight has no gradient: d(-w A logp)/d logp = -w A, also for clipped tokens.
    np.testing.assert_allclose(grad, [-0.5, 1.0, -4.0])
    log_ratios = [math.log(0.1), 0.0, math.log(4.0)]
    np.testing.assert_allclose(loss, [g * (-1 + moved) for g, moved in zip(grad, log_ratios, strict=True)])
    assert metrics["clip_fraction"] == [1, 0, 1]
    # Without a lower bound this is the importance-weighted policy gradient.
    np.testing.assert_allclose(_evaluate("cispo", [0.1], [1.0])[1], [-0.1])


def test_dppo_tv_by_hand():
    # Old probabilities are 1/e = 0.368, new ones 0.552, 0.552, 0.184, 0.184 and 0.736.
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 2.0], [1.0, -1.0, 1.0, -1.0, 1.0]
    _, grad, metrics = _evaluate("dppo_tv", ratios, advantages, DppoOptions(low=0.2, high=0.2, cap=1.2))
    np.testing.assert_allclose(grad, [-1.2, 1.2, -0.5, 0.5, 0.0])
    assert metrics["clip_fraction"] == [0, 0, 0, 0, 1]
    _, grad, metrics = _evaluate("dppo_tv", ratios, advantages, DppoOptions(low=0.15, high=0.4))
    np.testing.assert_allclose(grad, [-1.5, 1.5, -0.5, 0.0, -2.0])


def test_dppo_kl_by_hand():
    p, q = math.exp(-1), 1.5 * math.exp(-1)
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    near, far = DppoOptions(high=divergence + 1e-4), DppoOptions(high=divergence - 1e-4, low=0.0)
    np.testing.assert_allclose(_evaluate("dppo_kl", [1.5], [1.0], near)[1], [-1.5])
    # Beyond the bound a token is masked, unless it moved against its advantage.
    np.testing.assert_allclose(_evaluate("dppo_kl", [1.5, 1.5, 0.5], [1.0, -1.0, 1.0], far)[1], [0.0, 1.5, -0.5])


def test_dppo_kl_keeps_a_certain_token_that_rounding_puts_above_probability_1():
    old, new = torch.tensor([0.0, 2e-7]), torch.tensor([2e-7, 0.0])
    loss = losses.get("dppo_kl").function
    for advantage in (1.0, -1.0):
        _, metrics = loss(new, old, tokens([2], advantages=[advantage] * 2), DppoOptions())
        assert metrics["clip_fraction"].tolist() == [0, 0]


def test_reinforce_by_hand():
    loss, grad, _ = _evaluate("reinforce", [1.0, 2.0], [3.0, -1.0])
    np.testing.assert_allclose(loss, [3.0, -1 + math.log(2)])
    np.testing.assert_allclose(grad, [-3.0, 1.0])


def test_sapo_by_hand():
    options = SapoOptions(temperature_positive=1.0, temperature_negative=2.0)
    loss, grad, _ = _evaluate("sapo", [1.0, 1.5, 1.5], [1.0, 2.0, -1.0], options)

    def gate(ratio, t):
        return 4 / t / (1 + math.exp(-t * (ratio - 1)))

    np.testing.assert_allclose(loss, [-gate(1, 1), -2 * gate(1.5, 1), gate(1.5, 2)])
    # The slope is -A 4 p (1 - p) r, which is -A at ratio 1.
    p = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-1.0))
    np.testing.assert_allclose(grad, [-1.0, -2 * 4 * p[0] * (1 - p[0]) * 1.5, 4 * p[1] * (1 - p[1]) * 1.5])


def test_gspo_by_hand():
    options = GspoOptions(clip_low=0.2, clip_high=0.3)
    # sqrt(2 * 0.72) = 1.2 is within the bounds; sqrt(4) = 2 is clipped for A > 0, not for A < 0.
    ratios, advantages = [2.0, 0.72, 4.0, 1.0, 4.0, 1.0], [1.0, 1.0, 1.0, 1.0, -1.0, -1.0]
    loss, grad, metrics = _evaluate("gspo", ratios, advantages, options, counts=[2, 2, 2])
    np.testing.assert_allclose(metrics["sequence_ratio"], [1.2, 1.2, 2, 2, 2, 2])
    np.testing.assert_allclose(loss, [-1.2, -1.2, -1.3, -1.3, 2, 2])
    np.testing.assert_allclose(grad, [-1.2, -1.2, 0, 0, 2, 2], atol=1e-12)
    assert metrics["clip_fraction"] == [0, 0, 1, 1, 0, 0]


def test_gspo_has_the_gradient_of_the_sequence_ratio():
    """Compare with finite differences of the paper's objective, the mean of s A over trajectories."""
    counts, advantages = [3, 1], [0.7] * 3 + [-1.3]
    ratios = [1.1, 0.95, 1.02, 0.9]

    def objective(log_ratios):
        first, last = math.exp(sum(log_ratios[:3]) / 3), math.exp(log_ratios[3])
        return -(0.7 * first - 1.3 * last) / 2

    _, grad, _ = _evaluate("gspo", ratios, advantages, GspoOptions(clip_low=0.5, clip_high=0.5), counts)
    weights = np.repeat(token_weights(counts, losses.get("gspo").aggregation), counts)
    assert np.array(grad) * weights == pytest.approx(_differences(objective, [math.log(r) for r in ratios]), rel=1e-6)


def test_gmpo_by_hand_and_by_finite_differences():
    options = GmpoOptions(clip_low=0.3, clip_high=0.4)
    ratios, advantages = [math.exp(0.1), math.exp(0.9), math.exp(-0.9), math.exp(0.2)], [2.0, 2.0, 2.0, -1.0]
    loss, grad, metrics = _evaluate("gmpo", ratios, advantages, options, counts=[3, 1])
    # For A > 0 only the upper bound clips: (0.1 + 0.4 - 0.9) / 3.
    of_first = math.exp(-0.4 / 3)
    np.testing.assert_allclose(loss, [-2 * of_first] * 3 + [math.exp(0.2)])
    assert metrics["clip_fraction"] == [0, 1, 0, 0]

    def objective(x):
        return -2 * math.exp((x[0] + min(x[1], 0.4) + x[2]) / 3) / 2 + math.exp(x[3]) / 2

    weights = np.repeat(token_weights([3, 1], losses.get("gmpo").aggregation), [3, 1])
    expected = _differences(objective, [0.1, 0.9, -0.9, 0.2])
    assert np.array(grad) * weights == pytest.approx(expected, rel=1e-6, abs=1e-9)


def _differences(function, point, step=1e-6):
    found = []
    for index in range(len(point)):
        up, down = list(point), list(point)
        up[index] += step
        down[index] -= step
        found.append((function(up) - function(down)) / (2 * step))
    return found


@pytest.mark.parametrize("name", [name for name in losses.names() if losses.get(name).on_policy])
def test_at_ratio_one_every_loss_is_the_policy_gradient(name):
    """Check that the gradient by each log-probability is -A, also for trajectories of different lengths."""
    advantages = [0.5, 0.5, -2.0]
    _, grad, _ = _evaluate(name, [1.0, 1.0, 1.0], advantages, counts=[2, 1])
    np.testing.assert_allclose(grad, [-a for a in advantages], atol=1e-12)


def test_sft_is_negative_log_likelihood():
    loss, grad, metrics = _evaluate("sft", [1.0, math.exp(-1)], [0.0, 5.0])
    assert (loss, grad, metrics) == ([1.0, 2.0], [-1.0, -1.0], {})


def test_value_by_hand():
    values = doubles([1.0, 1.0, 3.0]).requires_grad_()
    known = tokens([3], advantages=[2.0, 2.0, 2.0], old=[0.9, 0.0, 0.0])
    loss, metrics = losses.get("value").function(values, doubles([0.0] * 3), known, ValueOptions(clip=0.5))
    # Within the bound: unclipped. Moved by 1: the loss at 0.5. Beyond the target: the larger loss.
    np.testing.assert_allclose(loss.detach(), [0.5, 1.125, 1.125])
    assert metrics["clip_fraction"].tolist() == [0, 1, 1]
    loss.sum().backward()
    np.testing.assert_allclose(values.grad, [-1.0, 0.0, 0.0])
    plain, _ = losses.get("value").function(values, doubles([0.0] * 3), known, ValueOptions(clip=None))
    np.testing.assert_allclose(plain.detach(), [0.5, 0.5, 0.5])


def test_implicit_reward_by_hand():
    logprobs = doubles([-1.0, -2.0, -1.0]).requires_grad_()
    known = tokens([2, 1], advantages=[1.0, 1.0, 0.0], reference=[-2.0, -3.0, -2.0])
    loss, metrics = losses.get("implicit_reward").function(
        logprobs, doubles([0.0] * 3), known, ImplicitRewardOptions(beta=0.5)
    )
    # The scores are 0.5 * 2 for the good trajectory and 0.5 * 1 for the bad one.
    good, bad = -math.log(1 / (1 + math.exp(-1.0))), -math.log(1 - 1 / (1 + math.exp(-0.5)))
    np.testing.assert_allclose(loss.detach(), [good, good, bad])
    assert metrics["accuracy"].tolist() == [1, 1, 0]
    weights = doubles(np.repeat(token_weights([2, 1], losses.get("implicit_reward").aggregation), [2, 1]).tolist())
    (loss * weights).sum().backward()
    # The slope of every token is beta * (sigmoid - outcome) / 2.
    slopes = 0.25 * (math.exp(-good) - 1), 0.25 * (1 - math.exp(-bad))
    np.testing.assert_allclose(logprobs.grad, [slopes[0], slopes[0], slopes[1]])


def test_kl_estimates_by_hand():
    logprobs, reference = doubles([-1.0, -2.0]), doubles([-1.5, -1.0])
    np.testing.assert_allclose(kl_estimate(logprobs, reference, KlEstimator.K1), [0.5, -1.0])
    np.testing.assert_allclose(kl_estimate(logprobs, reference, KlEstimator.K2), [0.125, 0.5])
    expected = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0]
    np.testing.assert_allclose(kl_estimate(logprobs, reference, KlEstimator.K3), expected)


def test_kl_estimates_average_to_the_kl_and_k2_has_its_gradient():
    """Sum the estimates over a small vocabulary, weighted with the probability of each token."""
    logits = doubles([0.3, -1.0, 0.8]).requires_grad_()
    reference = torch.log_softmax(doubles([-0.2, 0.1, 0.4]), 0)
    logprobs = torch.log_softmax(logits, 0)
    kl = (logprobs.exp() * (logprobs - reference)).sum()
    (expected,) = torch.autograd.grad(kl, logits, retain_graph=True)
    probabilities = logprobs.exp().detach()
    for estimator in (KlEstimator.K1, KlEstimator.K3):
        assert (probabilities * kl_estimate(logprobs, reference, estimator)).sum().item() == pytest.approx(kl.item())
    as_loss = (probabilities * kl_estimate(logprobs, reference, KlEstimator.K2)).sum()
    torch.testing.assert_close(torch.autograd.grad(as_loss, logits)[0], expected)


def test_weights_by_hand():
    counts = [1, 3]
    assert token_weights(counts, Aggregation.TOKEN_MEAN).tolist() == [0.25, 0.25]
    assert token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_SUM).tolist() == [0.5, 0.5]
    np.testing.assert_allclose(token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_MEAN), [1 / 2, 1 / 6])
    assert token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, norm=10).tolist() == [0.05, 0.05]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_weights_of_a_mean_sum_to_one(counts: list[int]):
    for how in (Aggregation.TOKEN_MEAN, Aggregation.SEQ_MEAN_TOKEN_MEAN):
        assert (token_weights(counts, how) * counts).sum() == pytest.approx(1.0)


def test_a_trajectory_without_sampled_tokens_is_refused():
    with pytest.raises(ValueError, match="at least one sampled token"):
        token_weights([2, 0], Aggregation.TOKEN_MEAN)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(UserError, match="Did you mean 'ppo'"):
        losses.get("pppo")
    ppo = losses.get("ppo")
    with pytest.raises(UserError, match="Did you mean 'clip_high'"):
        losses.parse_options(ppo, {"clip_hi": 0.3})
    with pytest.raises(UserError, match=r"loss_options\.clip_low"):
        losses.parse_options(ppo, {"clip_low": -1})
    assert losses.parse_options(ppo, {"clip_high": 0.5}) == PpoOptions(clip_high=0.5)
