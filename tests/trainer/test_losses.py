import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import UserError
from agentloop.trainer import losses
from agentloop.trainer.corrections import truncated_importance_weights
from agentloop.trainer.losses import Aggregation, PpoOptions, token_weights


def _ppo(ratios: list[float], advantages: list[float], options: PpoOptions):
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, metrics = losses.get("ppo").function(new, old, torch.tensor(advantages, dtype=torch.float64), options)
    loss.sum().backward()
    assert new.grad is not None
    return loss.tolist(), new.grad.tolist(), {name: value.tolist() for name, value in metrics.items()}


def test_ppo_by_hand():
    options = PpoOptions(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    ratios = [1.0, 1.5, 1.5, 0.5, 0.5, 4.0]
    advantages = [2.0, 1.0, -1.0, 1.0, -1.0, -1.0]
    loss, grad, metrics = _ppo(ratios, advantages, options)
    # Clipped above at 1.3 for a positive advantage, below at 0.8 for a negative one; the last is bounded at 3.
    np.testing.assert_allclose(loss, [-2.0, -1.3, 1.5, -0.5, 0.8, 3.0])
    # d(-A r)/d logp = -A r where not clipped.
    np.testing.assert_allclose(grad, [-2.0, 0.0, 1.5, -0.5, 0.0, 0.0], atol=1e-12)
    assert metrics["clip_fraction"] == [0, 1, 0, 0, 1, 0]
    assert metrics["dual_clip_fraction"] == [0, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(metrics["ratio"], ratios)
    np.testing.assert_allclose(metrics["approx_kl"], [r - 1 - math.log(r) for r in ratios], atol=1e-12)


def test_without_dual_clip_a_negative_advantage_has_no_bound():
    loss, grad, metrics = _ppo([4.0], [-1.0], PpoOptions(dual_clip=None))
    assert (round(loss[0], 6), round(grad[0], 6)) == (4.0, 4.0)
    assert "dual_clip_fraction" not in metrics


def test_sft_is_negative_log_likelihood():
    logprobs = torch.tensor([-1.0, -2.0])
    loss, metrics = losses.get("sft").function(logprobs, torch.zeros(2), torch.zeros(2), losses.NoOptions())
    assert loss.tolist() == [1.0, 2.0]
    assert metrics == {}


def test_weights_by_hand():
    counts = [1, 3]
    assert token_weights(counts, Aggregation.TOKEN_MEAN).tolist() == [0.25, 0.25]
    assert token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_SUM).tolist() == [0.5, 0.5]
    np.testing.assert_allclose(token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_MEAN), [1 / 2, 1 / 6])
    assert token_weights(counts, Aggregation.SEQ_MEAN_TOKEN_SUM_NORM, norm=10).tolist() == [0.05, 0.05]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_means_have_weights_that_sum_to_one(counts: list[int]):
    for how in (Aggregation.TOKEN_MEAN, Aggregation.SEQ_MEAN_TOKEN_MEAN):
        assert (token_weights(counts, how) * counts).sum() == pytest.approx(1.0)


def test_a_trajectory_without_sampled_tokens_has_no_weight():
    with pytest.raises(ValueError, match="at least one sampled token"):
        token_weights([2, 0], Aggregation.TOKEN_MEAN)


def test_names_and_options_that_are_not_known():
    with pytest.raises(UserError, match="Did you mean 'ppo'"):
        losses.get("pppo")
    ppo = losses.get("ppo")
    with pytest.raises(UserError, match="Did you mean 'clip_high'"):
        losses.parse_options(ppo, {"clip_hi": 0.3})
    with pytest.raises(UserError, match=r"loss_options\.clip_low"):
        losses.parse_options(ppo, {"clip_low": -1})
    assert losses.parse_options(ppo, {"clip_high": 0.5}) == PpoOptions(clip_high=0.5)


def test_importance_weights_are_truncated_and_carry_no_gradient():
    learner = torch.tensor([0.0, -1.0, -1.0], requires_grad=True)
    weights = truncated_importance_weights(learner, torch.tensor([-2.0, -1.0, 0.0]), 2.0)
    np.testing.assert_allclose(weights.numpy(), [2.0, 1.0, math.exp(-1)], rtol=1e-6)
    assert not weights.requires_grad
