"""Policy losses: small functions from log-probabilities to a loss a token, and how tokens are averaged.

A loss function knows nothing of mini-batches. What a token counts is its weight, which `token_weights` computes from
the whole mini-batch before that is split into micro-batches and ranks: the sum of loss * weight, and so the gradient,
does not depend on how the mini-batch was planned. Losses over whole trajectories keep that: one is never split.
"""

from agentloop.config.learner import Aggregation
from agentloop.registry.registry import NoOptions
from agentloop.trainer.losses import clipped, divergence, implicit_reward, sequence, soft, supervised, value
from agentloop.trainer.losses.aggregation import token_weights
from agentloop.trainer.losses.base import Loss, LossFn, get, names, parse_options, register

__all__ = [
    "Aggregation",
    "Loss",
    "LossFn",
    "NoOptions",
    "clipped",
    "divergence",
    "get",
    "implicit_reward",
    "names",
    "parse_options",
    "register",
    "sequence",
    "soft",
    "supervised",
    "token_weights",
    "value",
]
