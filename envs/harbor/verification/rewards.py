"""Read reward files, and combine the rewards of steps.

A verifier writes /logs/verifier/reward.json, an object of names and finite numbers, or reward.txt, one number. A
missing, empty or non-finite reward fails the episode; it never counts as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentloop.envs.harbor.tasks.config import RewardStrategy
from agentloop.errors import EnvError

Rewards = dict[str, float]
"""Numbers by name; `reward` is the reward, others are metrics."""


class VerifierError(EnvError):
    """The tests gave no reward."""


def read_rewards(folder: Path, ending: str) -> Rewards:
    """Read the rewards in a copy of /logs/verifier.

    Raises `VerifierError` if there is none; without a reward file, the error also has `ending`, how the tests ended.
    """
    table, number = folder / "reward.json", folder / "reward.txt"
    try:
        if table.is_file():
            return _of_json(table.read_text(encoding="utf-8"))
        if number.is_file():
            return {"reward": _finite("reward.txt", float(number.read_text(encoding="utf-8")))}
    except (ValueError, RecursionError) as error:
        raise VerifierError(f"the tests wrote no finite number as the reward: {error}") from error
    raise VerifierError(f"the tests wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt; {ending}")


def _of_json(text: str) -> Rewards:
    found = json.loads(text)
    if not isinstance(found, Mapping):
        raise ValueError(f"reward.json is {text.strip()[:80]!r} and not an object of names and numbers")
    return {name: _finite(f"{name!r} of reward.json", value) for name, value in found.items()}


def _finite(name: str, value: object) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r:.80}")
    if not math.isfinite(number := float(value)):
        raise ValueError(f"{name} is {value!r:.80}")
    return number


def reaches(rewards: Rewards, least: float | Mapping[str, float] | None) -> bool:
    """Return whether a step earned its `min_reward`, so that the next one begins."""
    if least is None:
        return True
    wanted = least if isinstance(least, Mapping) else {"reward": least}
    return all(rewards.get(name, -math.inf) >= value for name, value in wanted.items())


def combined(steps: Sequence[Rewards], strategy: RewardStrategy | None) -> Rewards:
    """Combine the rewards of steps: their mean, with missing names as 0, or those of the last step."""
    if strategy is RewardStrategy.FINAL:
        return dict(steps[-1])
    names = {name for rewards in steps for name in rewards}
    return {name: sum(rewards.get(name, 0.0) for rewards in steps) / len(steps) for name in sorted(names)}
