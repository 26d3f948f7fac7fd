"""Which trajectory goes to which data-parallel rank and micro-batch, and what that costs.

Pure functions over lengths: every rank computes the same plan from the same lengths, nothing is sent.
"""

from agentloop.trainer.planning.costs import CostModel
from agentloop.trainer.planning.flops import ModelFlops
from agentloop.trainer.planning.plans import Plan, plan

__all__ = ["CostModel", "ModelFlops", "Plan", "plan"]
