"""Losses: functions from the log-probabilities of trained tokens to a loss per token, and how tokens are averaged.

They use batch and advantages; the objective combines them. A loss function does not know the mini-batch.
`token_weights` computes the weight of each token from the whole mini-batch, before it is split into micro-batches and
ranks. So the sum of loss * weight, and its gradient, does not depend on the plan. This also holds for losses over whole
trajectories, because a trajectory is never split.
"""

from agentloop.config.learner import Aggregation
from agentloop.registry.options import NoOptions
from agentloop.trainer.losses import divergence, preference, sequence_ratio, supervised, token_ratio
from agentloop.trainer.losses.aggregation import token_weights
from agentloop.trainer.losses.base import Loss, LossFn, get, names, parse_options, register

__all__ = [
    "Aggregation",
    "Loss",
    "LossFn",
    "NoOptions",
    "divergence",
    "get",
    "names",
    "parse_options",
    "preference",
    "register",
    "sequence_ratio",
    "supervised",
    "token_ratio",
    "token_weights",
]
