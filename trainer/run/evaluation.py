"""Evaluation: play episodes on held-out tasks, without training on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentloop.episodes.setup import RolloutSetup
from agentloop.trainer.run.metrics.rollout import reward_metrics, tool_call_rate
from agentloop.trainer.schedule.failures import is_failed
from agentloop.trainer.workers.protocol import Workers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.requests import Group
from agentloop.types.trajectory import Trajectory


async def evaluate(
    setup: RolloutSetup, workers: Workers, *, on_trajectory: Callable[[Trajectory], None] | None = None
) -> tuple[dict[str, float], list[Group]]:
    """Play the held-out tasks, always with the same seeds; return metrics with the prefix `eval/`, and the groups.

    Failed episodes count in `eval/failed`, not in the mean reward.
    """
    config, run = setup.config, setup.sampling
    requests = make_requests(
        "eval",
        range(len(setup.eval)),
        n=config.eval.samples,
        seed=config.run.seed,
        split="eval",
        sampling=replace(run, temperature=config.eval.temperature, top_p=config.eval.top_p or run.top_p),
    )
    groups = await play_all(workers, requests, on_trajectory)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {f"eval/{name}": value for name, value in reward_metrics(trajectories).items()}
    metrics["eval/tool_call_rate"] = tool_call_rate(trajectories)
    metrics["eval/failed"] = sum(map(is_failed, trajectories)) / len(trajectories)
    return metrics, groups
