"""Plans: which trajectory goes to which data-parallel rank and micro-batch, and at what cost.

They come after the batch and before the learner. Plans are pure functions of lengths: every rank computes the same
plan from the same lengths, so nothing is sent.
"""

from agentloop.trainer.planning.costs import CostModel
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.planning.plans import Plan, plan

__all__ = ["CostModel", "ModelFlops", "Plan", "plan"]
