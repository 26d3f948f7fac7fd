"""Runs on a virtual clock: run loop, policy, queue and agent loops are real; engine, learner and tool are models."""

from agentloop.trainer.simulation.bound import least_seconds
from agentloop.trainer.simulation.run import Machine, Outcome, simulate, simulate_without_barrier
from agentloop.trainer.simulation.several import Rounds, simulate_rounds
from agentloop.trainer.simulation.workload import Workload

__all__ = [
    "Machine",
    "Outcome",
    "Rounds",
    "Workload",
    "least_seconds",
    "simulate",
    "simulate_rounds",
    "simulate_without_barrier",
]
