"""Rewards of finished trajectories.

A reward is a function `reward(trajectory, task, **options) -> float`, sync or async, or a `Reward` class. A config
names a built-in one (`REWARDS`), or its location, 'package.module:name' or 'file.py:name', or several with weights.
docs/guides/rewards.md describes them all.
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
