"""The loss of preference pairs, by the formula of the paper."""

import math

import numpy as np
import pytest
import torch

from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.losses.preference import DpoOptions, dpo, pair_metrics


def sample(sign, reference, rival):
    count = len(reference)
    return Sample(
        token_ids=np.zeros(count + 1, np.int32),
        loss_mask=np.arange(count + 1) > 0,
        logprobs=np.zeros(count + 1, np.float32),
        versions=np.zeros(count + 1, np.int32),
        advantage=sign,
        reference_logprobs=np.array(reference, np.float32),
        rival=rival,
        episode=0,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_each_answer_has_half_of_the_loss_and_the_whole_gradient_by_its_tokens(smoothing):
    options = DpoOptions(beta=0.5, label_smoothing=smoothing)
    logprobs = torch.tensor([-1.0, -2.0, -1.5], dtype=torch.float64, requires_grad=True)
    better, worse = 0.5 + 1.0, -0.5  # log-ratios to the references below
    samples = [sample(1.0, [-1.5, -3.0], worse), sample(-1.0, [-1.0], better)]
    tokens = TrainedTokens.of(samples, [1.0, 1.0], torch.device("cpu"))

    loss = dpo(logprobs, logprobs, tokens, options)[0].sum()
    loss.backward()
    margin = 0.5 * (better - worse)
    expected = (1 - smoothing) * math.log1p(math.exp(-margin)) + smoothing * math.log1p(math.exp(margin))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    slope = -0.5 * ((1 - smoothing) / (1 + math.exp(margin)) - smoothing / (1 + math.exp(-margin)))
    assert logprobs.grad.tolist() == pytest.approx([slope, slope, -slope], rel=1e-6)

    metrics = pair_metrics(np.array([better, worse]), [True, False], options)
    assert metrics == pytest.approx(
        {"loss": expected, "accuracy": 1.0, "margin": margin, "better_reward": 0.75, "worse_reward": -0.25}
    )
