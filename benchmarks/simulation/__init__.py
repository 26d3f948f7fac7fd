"""Simulated runs on a virtual clock: the run loop is real; engine, learner and tool are models."""

from benchmarks.simulation.bound import least_seconds
from benchmarks.simulation.run import Machine, Outcome, simulate, simulate_without_barrier
from benchmarks.simulation.workload import Workload

__all__ = [
    "Machine",
    "Outcome",
    "Workload",
    "least_seconds",
    "simulate",
    "simulate_without_barrier",
]
