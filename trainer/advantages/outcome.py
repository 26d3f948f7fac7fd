"""`Outcome`: one judged trajectory as an advantage function sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentloop.types.trajectory import SegmentKind, Trajectory


@dataclass(slots=True, frozen=True, eq=False)
class Outcome:
    """Its reward is finite."""

    trajectory: Trajectory
    shaping: float = 0.0
    """Added to the reward of the trajectory."""
    penalties: NDArray[np.float64] | None = None
    """[num_sampled]; taken from the reward at each sampled token."""
    baseline: float | None = None
    """The reward of the greedy episode of the same task, where there is one."""

    values: NDArray[np.float32] | None = None
    """[num_sampled]; of a critic, of what each sampled token follows."""
    process_rewards: NDArray[np.float32] | None = None
    """[num_sampled]; of a process reward model, for each sampled token."""

    @property
    def final_reward(self) -> float:
        """All but the penalties of tokens."""
        assert self.trajectory.reward is not None
        return self.trajectory.reward + self.shaping

    @property
    def reward(self) -> float:
        """All of it."""
        return self.final_reward - (0.0 if self.penalties is None else float(self.penalties.sum()))

    @property
    def num_sampled(self) -> int:
        return self.trajectory.num_sampled

    @property
    def turn_lengths(self) -> NDArray[np.int64]:
        """Sampled tokens of each turn, [num_turns]."""
        segments = self.trajectory.sampled_segments()
        return np.array([segment.end - segment.start for segment in segments], dtype=np.int64)

    @property
    def turn_rewards(self) -> NDArray[np.float64]:
        """Of the environment and its tools for each turn, [num_turns]; what lies behind the last one is part of it."""
        rewards = np.zeros(self.trajectory.num_turns)
        given = np.array(self.trajectory.turn_rewards, dtype=np.float64)
        if len(rewards):
            kept = given[: len(rewards)]
            rewards[: len(kept)] = kept
            rewards[-1] += given[len(rewards) :].sum()
        return rewards

    @property
    def states(self) -> list[bytes]:
        """What the model was shown just before each turn, [num_turns]: the prompt, or the tokens since its last turn.
        Equal for turns in the same situation, whatever led there."""
        found, shown = [], b""
        ids = self.trajectory.token_ids
        for segment in self.trajectory.segments:
            if segment.kind is SegmentKind.SAMPLED:
                found.append(shown)
                shown = b""
            else:
                shown += ids[segment.start : segment.end].tobytes()
        return found
