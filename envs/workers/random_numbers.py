"""Separate random numbers for each of several games in one process. Workers load this file by its path.

numbers = RandomNumbers(seed=7)
with numbers.used():
    game.step(...)    # draws the same from `random` and `numpy.random` as if it ran alone
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy


class RandomNumbers:
    """State of `random` and `numpy.random` for one game."""

    def __init__(self, seed: int) -> None:
        before = _state()
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        self._own = _state()
        _restore(before)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use these random numbers within the block."""
        before = _state()
        _restore(self._own)
        try:
            yield
        finally:
            self._own = _state()
            _restore(before)


def _state() -> tuple[Any, Any]:
    return random.getstate(), numpy.random.get_state()


def _restore(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    numpy.random.set_state(state[1])
