"""Which of the groups that were played a step trains on, and whether more have to be played."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentloop.rollout import Group
from agentloop.trainer.algorithm import AlgorithmConfig
from agentloop.trainer.metrics import is_uninformative


class StepGroups:
    """The groups of one step, gathered in rounds. Without dynamic sampling there is one round, and all are kept.

    Depends on nothing but what is added, so that a step that is played again comes to the same groups.
    """

    def __init__(self, algorithm: AlgorithmConfig) -> None:
        self._wanted = algorithm.groups_per_step
        self._settings = algorithm.dynamic_sampling
        self._rounds = 0
        self._kept: list[Group] = []
        self.played: list[Group] = []
        """All of them, in order."""

    @property
    def num_to_play(self) -> int:
        """Groups of the next round; 0 when there are enough, or no rounds are left."""
        missing = self._wanted - len(self._kept)
        if self._settings is None:
            return missing if self._rounds == 0 else 0
        if missing <= 0 or self._rounds == self._settings.max_rounds:
            return 0
        return math.ceil(missing * self._settings.oversampling)

    def add(self, groups: Sequence[Group]) -> None:
        """What a round played."""
        self._rounds += 1
        self.played.extend(groups)
        self._kept.extend(group for group in groups if self._settings is None or not is_uninformative(group))

    @property
    def trained(self) -> list[Group]:
        """The first ones with unequal rewards, as many as the step wants and there are."""
        return self._kept[: self._wanted]

    def metrics(self) -> dict[str, float]:
        """Where every played group went; nothing without dynamic sampling."""
        if self._settings is None:
            return {}
        return {
            "sampling/rounds": float(self._rounds),
            "sampling/groups_played": float(len(self.played)),
            "sampling/groups_trained": float(len(self.trained)),
            "sampling/groups_equal": float(len(self.played) - len(self._kept)),
            "sampling/groups_surplus": float(len(self._kept) - len(self.trained)),
        }
