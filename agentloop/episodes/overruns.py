"""Time limits of the calls to an environment and its reward."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Literal, TypeVar

from agentloop.tools.time_limit import OutOfTimeError, within

if TYPE_CHECKING:
    from agentloop.types.limits import Limits
    from agentloop.types.trajectory import Trajectory

R = TypeVar("R")
Stage = Literal["reset", "step", "score", "close"]

OVERRUNS = "overruns/"
"""Prefix of trajectory metrics that count calls over their time limit, by stage."""


async def within_limit(stage: Stage, call: Awaitable[R], limits: Limits, trajectory: Trajectory) -> R:
    """Await a call to the environment or, in stage `score`, to the reward.

    Raises `TimeoutError` after `limits.max_env_seconds` or `limits.max_reward_seconds`, and counts the overrun as
    `overruns/<stage>`. The caller continues; code that is not `async` occupies its thread until it returns. Raises
    `RuntimeError` if the code exits: a `SystemExit` would end the event loop and all its episodes.
    """
    name = "max_reward_seconds" if stage == "score" else "max_env_seconds"
    seconds: float = getattr(limits, name)
    try:
        return await within(seconds, call)
    except OutOfTimeError as error:
        metric = f"{OVERRUNS}{stage}"
        trajectory.metrics[metric] = trajectory.metrics.get(metric, 0.0) + 1.0
        raise TimeoutError(f"it took longer than limits.{name}={seconds:g}") from error
