"""Rewards: what a finished trajectory is worth.

A reward is a function `reward(trajectory, task, **options) -> float`, sync or async, or a `Reward` class. Configs name
one by its place, 'package.module:name' or 'file.py:name', or by the name of a built-in one (`REWARDS`); or several
with weights. docs/rewards.md has them all.
"""

from agentloop.envs.rewards.base import Outcome, RawReward, Reward, inline
from agentloop.envs.rewards.function import RewardFunction
from agentloop.envs.rewards.loading import REWARDS, load_reward
from agentloop.envs.rewards.weighted import RewardSpec, RewardTerm

__all__ = [
    "REWARDS",
    "Outcome",
    "RawReward",
    "Reward",
    "RewardFunction",
    "RewardSpec",
    "RewardTerm",
    "inline",
    "load_reward",
]
