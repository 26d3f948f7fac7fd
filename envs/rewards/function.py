"""`RewardFunction`: wraps any reward for the environment."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import OF_THE_RUN, RawReward, Reward
from agentloop.errors import WrongTypeError, blaming, named, shown
from agentloop.process.threads import REWARDS
from agentloop.tools.time_limit import SHUTDOWN_SECONDS, within
from agentloop.types.returned_numbers import checked_number

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Judgement:
    """Checked outcome of a reward."""

    reward: float
    turn_rewards: Sequence[float] = ()
    """One reward per sampled turn, or empty."""
    metrics: Mapping[str, float] = field(default_factory=dict)


class RewardFunction:
    """Reward for the environment: asynchronous, off the event loop if it takes time, with checked results."""

    def __init__(self, function: RawReward | Reward, *, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Wrap a function or a `Reward`. `options` are keyword arguments of every call."""
        self.name = name
        self._written = getattr(function, "function", function)
        """The author's function, for errors: if there is one, the function that a `Reward` calls."""
        self._reward = function if isinstance(function, Reward) else None
        self._call: RawReward = partial(function, **(options or {}))
        self._is_async = isinstance(function, Reward) or inspect.iscoroutinefunction(function)
        self._is_inline = getattr(function, "runs_inline", False)

    async def start(self) -> None:
        """Start the reward. Raises `UserError` if it cannot work here."""
        if self._reward is not None:
            with blaming(f"The reward {self.name!r} cannot start"):
                await self._reward.start()

    async def shutdown(self) -> None:
        """Release the resources of the reward, within `SHUTDOWN_SECONDS`. A failure is logged."""
        if self._reward is not None:
            try:
                await within(SHUTDOWN_SECONDS, self._reward.shutdown())
            except Exception:  # user code, after the last episode
                _logger.exception("The reward %r failed to shut down.", self.name)

    async def __call__(self, trajectory: Trajectory, task: Mapping[str, Any]) -> float:
        """Return the outcome reward, and add the rewards of turns and the metrics to the trajectory.

        Metrics are in `trajectory.metrics` as `reward/<name>`. Raises as `judge` does, and then changes nothing.
        """
        judgement = await self.judge(trajectory, task)
        for key in judgement.metrics:
            if key in OF_THE_RUN:
                raise ValueError(
                    f"{named(self._written)} returned a value {key!r}, but reward/{key} in the log is the run's own: "
                    "choose another name"
                )
        for turn, value in enumerate(judgement.turn_rewards):
            trajectory.turn_rewards[turn] += value
        for key, value in judgement.metrics.items():
            trajectory.metrics[f"reward/{key}"] = value
        return judgement.reward

    async def judge(self, trajectory: Trajectory, task: Mapping[str, Any]) -> Judgement:
        """Call the reward and check its outcome.

        Raises the errors of the reward, `WrongTypeError` for a result of a wrong type, and `ValueError` for a result
        that is not finite or has a wrong number of turns.
        """
        if self._is_async or self._is_inline:
            outcome = self._call(trajectory, task)
        else:
            outcome = await REWARDS.run(self._call, trajectory, task)
        if inspect.isawaitable(outcome):
            outcome = await outcome
        return self._checked(outcome, len(trajectory.turn_rewards))

    def _checked(self, outcome: Any, num_turns: int) -> Judgement:
        written = self._written
        if isinstance(outcome, Judgement):  # of a weighted sum, which has checked its terms
            return replace(outcome, reward=checked_number(outcome.reward, written))
        if not isinstance(outcome, Mapping):
            return Judgement(checked_number(outcome, written))
        if "reward" not in outcome:
            keys = ", ".join(map(str, outcome)) or "no keys"
            raise WrongTypeError(f"{named(written)} returned a dict without 'reward': it has {keys}.")
        turns = outcome.get("turn_rewards", ())
        if isinstance(turns, str) or not isinstance(turns, Sequence):
            raise WrongTypeError(f"{named(written)} returned {shown(turns)} as 'turn_rewards': it must be a list.")
        if len(turns) not in (0, num_turns):
            raise ValueError(f"{named(written)} returned {len(turns)} 'turn_rewards' for {num_turns} sampled turns")
        metrics = {key: value for key, value in outcome.items() if key not in ("reward", "turn_rewards")}
        return Judgement(
            checked_number(outcome["reward"], written),
            [checked_number(value, written, "reward of a turn") for value in turns],
            {key: checked_number(value, written, f"value of {key!r}") for key, value in metrics.items()},
        )
