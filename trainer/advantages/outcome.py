"""`Outcome`: one judged trajectory, the input of an advantage function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentloop.types.trajectory import SegmentKind, Trajectory


@dataclass(slots=True, frozen=True, eq=False)
class Outcome:
    """One judged trajectory, whose reward is finite."""

    trajectory: Trajectory
    shaping: float = 0.0
    """Shaping that is added to the reward of the trajectory."""
    penalties: NDArray[np.float64] | None = None
    """Penalties that are subtracted from the reward at each sampled token, [num_sampled]."""
    other_penalties: float = 0.0
    """Sum of the penalties of the episode's other streams, which are also subtracted from the reward."""
    other_sampled: int = 0
    """Number of sampled tokens of the episode's other streams."""
    episode: int | None = None
    """Number that the streams of one episode of a group share; None: a separate episode."""
    baseline: float | None = None
    """Reward of the greedy episode of the same task, with shaping and penalties, if it was judged."""

    values: NDArray[np.float32] | None = None
    """Critic's value of the state before each sampled token, [num_sampled]."""
    process_rewards: NDArray[np.float32] | None = None
    """Process reward model's reward of each sampled token, [num_sampled]."""

    @property
    def final_reward(self) -> float:
        """Reward with shaping, without penalties of tokens."""
        assert self.trajectory.reward is not None
        return self.trajectory.reward + self.shaping

    @property
    def reward(self) -> float:
        """Reward with shaping and penalties."""
        own = 0.0 if self.penalties is None else float(self.penalties.sum())
        return self.final_reward - own - self.other_penalties

    @property
    def num_sampled(self) -> int:
        return self.trajectory.num_sampled

    @property
    def turn_lengths(self) -> NDArray[np.int64]:
        """Number of sampled tokens of each turn, [num_turns]."""
        segments = self.trajectory.sampled_segments()
        return np.array([segment.end - segment.start for segment in segments], dtype=np.int64)

    @property
    def turn_rewards(self) -> NDArray[np.float64]:
        """Reward of each turn from the environment and its tools, [num_turns]; the last turn also has later ones."""
        rewards = np.zeros(self.trajectory.num_turns)
        given = np.array(self.trajectory.turn_rewards, dtype=np.float64)
        if len(rewards):
            kept = given[: len(rewards)]
            rewards[: len(kept)] = kept
            rewards[-1] += given[len(rewards) :].sum()
        return rewards

    @property
    def states(self) -> list[bytes]:
        """Bytes of the tokens since the previous turn (for the first turn: of the prompt), one item per turn.

        Turns in the same state have equal bytes, regardless of how the episode reached the state.
        """
        found, shown = [], b""
        ids = self.trajectory.token_ids
        for segment in self.trajectory.segments:
            if segment.kind is SegmentKind.SAMPLED:
                found.append(shown)
                shown = b""
            else:
                shown += ids[segment.start : segment.end].tobytes()
        return found
