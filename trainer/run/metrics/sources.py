"""Metrics of a mixture of sources, and updates of its sampler from the groups of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agentloop.trainer.batch.outcomes import is_judged

if TYPE_CHECKING:
    from agentloop.envs.mixture import MixedSampler
    from agentloop.types.requests import Group


def source_metrics(sampler: MixedSampler, groups: Sequence[Group]) -> dict[str, float]:
    """Record the rewards of the groups, in order, in the sampler; return the metrics by source.

    Episodes without a reward are excluded; a group without rewards is counted but not recorded.
    """
    rewards: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for group in groups:
        task = group.request.row
        found = [trajectory.reward for trajectory in group.trajectories if is_judged(trajectory)]
        sampler.record(task, [reward for reward in found if reward is not None])
        counts[sampler.source_of(task)] += 1
        rewards[sampler.source_of(task)] += [reward for reward in found if reward is not None]
    return (
        {f"source/{name}/groups": float(count) for name, count in sorted(counts.items())}
        | {f"source/{name}/reward": float(np.mean(found)) for name, found in sorted(rewards.items()) if found}
        | sampler.metrics()
    )
