"""Plans: the assignment of trajectories to data-parallel ranks and micro-batches, and its cost.

They are made between batch and learner. Plans are pure functions of lengths: every rank computes the same plan, without
communication.
"""

from agentloop.trainer.planning.costs import CostModel
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.planning.plans import Plan, plan

__all__ = ["CostModel", "ModelFlops", "Plan", "plan"]
