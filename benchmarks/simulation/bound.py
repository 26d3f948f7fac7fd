"""Lower bound on the time of any policy with bounded staleness, even one that knows every length (`least_seconds`).

T(v) is the end of the v-th training step. Groups begin in the order of the dataset, and each step trains B of them. A
group that begins with the weights of version v is trained in step v + s + 1 at the latest (s is `max_staleness`). At
most (s + 1) * B groups are admitted and untrained. So block b (the groups b * B to b * B + B - 1) begins at version
b - s at the earliest and at version b at the latest, and is trained by T(b + s + 1). Therefore, for every policy:

    T(b + s + 1) >= T(b - s) + the longest episode of block b alone on the machine + a training step
    T(t)         >= T(u) + the work of the blocks u + s to t - s - 1, which begin and end between
    T(v + 1)     >= T(v) + a training step

A training step counts with its fixed seconds only, as if its tokens took no time.

The work of episodes is the time in which a machine that is always full plays them. With n sampling requests and m
episodes that wait for a tool, n + m is at most its concurrency. Tokens per second are concave in n, so a constant n
gives the most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.run import Machine
from benchmarks.simulation.workload import Workload

_HALVINGS = 60


@dataclass(slots=True, frozen=True)
class _Blocks:
    """Work of the groups that are trained in one step. All arrays are [steps]."""

    tokens: NDArray[np.float64]
    tool_seconds: NDArray[np.float64]
    longest: NDArray[np.float64]
    """Seconds of the longest episode if nothing else runs."""


def least_seconds(
    workload: Workload, machine: Machine, *, steps: int, groups_per_step: int, group_size: int, max_staleness: int
) -> float:
    """Return the least seconds from the first admission to the end of the last step."""
    blocks = _blocks(workload, machine, steps, groups_per_step * group_size, group_size)
    step = machine.learner_step_seconds
    ends = np.zeros(steps + 1)
    for end in range(1, steps + 1):
        first = end - max_staleness - 1
        least = [ends[end - 1] + step]
        for block in range(max(first, 0), steps if end == steps else first + 1):
            least.append(ends[max(block - max_staleness, 0)] + blocks.longest[block] + step)
        for begin in range(end):
            within = slice(begin + max_staleness if begin else 0, steps if end == steps else max(first + 1, 0))
            tokens, tools = blocks.tokens[within].sum(), blocks.tool_seconds[within].sum()
            least.append(ends[begin] + _full_machine_seconds(float(tokens), float(tools), machine))
        ends[end] = max(least)
    return float(ends[-1])


def _blocks(workload: Workload, machine: Machine, steps: int, size: int, group_size: int) -> _Blocks:
    tokens, tools = np.zeros((steps, size)), np.zeros((steps, size))
    for episode in range(steps * size):
        task, place = divmod(episode, group_size)
        calls = workload.num_calls(task, place)
        at = divmod(episode, size)
        tokens[at] = sum(workload.num_tokens(task, place, turn) for turn in range(calls + 1))
        tools[at] = sum(workload.call_seconds(task, place, call) for call in range(calls))
    alone = tokens * (machine.step_seconds + machine.request_seconds) + tools
    return _Blocks(tokens.sum(1), tools.sum(1), alone.max(1))


def _full_machine_seconds(tokens: float, tool_seconds: float, machine: Machine) -> float:
    """Return the least time to sample this many tokens while episodes wait this long for tools in total."""
    if not tokens:
        return 0.0
    low, high = 0.0, tool_seconds / machine.concurrency + tokens * (machine.step_seconds + machine.request_seconds)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        sampled = machine.concurrency - tool_seconds / middle
        rate = max(sampled, 0.0) / (machine.step_seconds + max(sampled, 0.0) * machine.request_seconds)
        low, high = (low, middle) if rate * middle >= tokens else (middle, high)
    return high
