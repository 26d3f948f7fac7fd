"""`TaskSampler`: selects the next tasks, in a new order each epoch, from a position that can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agentloop.errors import UserError


class TaskSampler:
    """Endless sequence of task indices. Each epoch is a permutation of all tasks, seeded by (seed, epoch)."""

    def __init__(self, num_tasks: int, *, seed: int = 0, shuffle: bool = True) -> None:
        assert num_tasks > 0
        self._num_tasks = num_tasks
        self._seed = seed
        self._shuffle = shuffle
        self._num_taken = 0
        self._order_epoch = -1
        self._order = np.arange(num_tasks)

    @property
    def epoch(self) -> int:
        """Number of complete passes over the tasks."""
        return self._num_taken // self._num_tasks

    def take(self, num: int) -> list[int]:
        """Return the next `num` indices, which may continue in the next epoch."""
        return [self._next() for _ in range(num)]

    def _next(self) -> int:
        epoch, position = divmod(self._num_taken, self._num_tasks)
        if self._shuffle and epoch != self._order_epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._num_tasks)
            self._order_epoch = epoch
        self._num_taken += 1
        return int(self._order[position])

    def state_dict(self) -> dict[str, Any]:
        """Return the position. Two numbers are enough, because the seed determines the order of an epoch."""
        return {"num_tasks": self._num_tasks, "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises `UserError` if the size of the dataset has changed."""
        if state["num_tasks"] != self._num_tasks:
            raise UserError(
                f"The dataset had {state['num_tasks']} tasks when the checkpoint was written, but now it has "
                f"{self._num_tasks}. Restore the dataset, or start in a new run folder."
            )
        self._num_taken = state["num_taken"]
