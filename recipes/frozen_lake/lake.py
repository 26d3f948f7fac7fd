"""gymnasium's FrozenLake with a new map for every seed and observations in words.

The words describe the cells around the player and the direction of the goal. The map is visible too unless
`show_map` is off. By default the ice is not slippery, so moves are deterministic.
"""

from __future__ import annotations

import string
from collections import deque
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

MOVES = ("left", "down", "right", "up")
"""Moves in the order of gymnasium's actions."""
_STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
_CELLS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
_MAX_CHARS = 4000

Cell = tuple[int, int]


class RandomLake(gymnasium.Env[str, Any]):
    """Solvable map of `size` x `size` from the seed of `reset`. Each cell is ice with probability `ice`."""

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - gymnasium's own form
    action_space = spaces.Discrete(len(MOVES))

    def __init__(
        self,
        size: int = 4,
        ice: float = 0.8,
        slippery: bool = False,
        max_steps: int = 20,
        show_map: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = spaces.Text(_MAX_CHARS, charset=frozenset(string.printable))
        self.render_mode = render_mode
        self._size, self._ice, self._slippery = size, ice, slippery
        self._max_steps, self._show_map = max_steps, show_map
        self._lake: FrozenLakeEnv | None = None
        self._map: list[str] = []
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._map = generate_random_map(self._size, self._ice, seed=int(self.np_random.integers(2**31)))
        self._lake = FrozenLakeEnv(desc=self._map, is_slippery=self._slippery)
        place, _ = self._lake.reset(seed=int(self.np_random.integers(2**31)))
        self._num_steps = 0
        return self._shown(place), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move, for a reward of 1.0 at the goal. A hole ends the episode, and `max_steps` truncates it."""
        assert self._lake is not None, "reset comes first"
        place, reward, terminated, _, _ = self._lake.step(int(action))
        self._num_steps += 1
        truncated = not terminated and self._num_steps >= self._max_steps
        return self._shown(place), float(reward), bool(terminated), truncated, {}

    def render(self) -> str:
        assert self._lake is not None, "reset comes first"
        return "\n".join(map_lines(self._map, divmod(int(self._lake.s), self._size)))

    def close(self) -> None:
        if self._lake is not None:
            self._lake.close()

    def best_moves(self) -> list[str]:
        """Return the moves that begin a shortest path from the player's cell."""
        assert self._lake is not None, "reset comes first"
        return best_moves(self._map, divmod(int(self._lake.s), self._size))

    def _shown(self, place: int) -> str:
        player = divmod(int(place), self._size)
        words = in_words(self._map, player)
        return "\n".join([*map_lines(self._map, player), words]) if self._show_map else words


def map_lines(rows: list[str], player: Cell) -> list[str]:
    """Return the map with the player, P."""
    return [" ".join("P" if (i, j) == player else cell for j, cell in enumerate(row)) for i, row in enumerate(rows)]


def in_words(rows: list[str], player: Cell) -> str:
    """Describe the cells around the player and the distance to the goal in the lower right corner."""
    around = ", ".join(f"{move} {_cell(rows, player, move)}" for move in MOVES)
    last = len(rows) - 1
    return f"{around}. goal {last - player[0]} down {last - player[1]} right"


def best_moves(rows: list[str], player: Cell) -> list[str]:
    """Return the moves that begin a shortest path to the goal; none if it is not reachable."""
    distances = _distances(rows)
    ways = {move: distances[cell] for move in MOVES if (cell := _moved(rows, player, move)) in distances}
    return [move for move, distance in ways.items() if distance == min(ways.values())]


def _distances(rows: list[str]) -> dict[Cell, int]:
    """Return the number of moves to the goal from each cell that is not a hole."""
    goal = (len(rows) - 1, len(rows) - 1)
    distances = {goal: 0}
    left = deque([goal])
    while left:
        cell = left.popleft()
        for move in MOVES:
            beside = _moved(rows, cell, move)
            if beside is not None and beside not in distances and rows[beside[0]][beside[1]] != "H":
                distances[beside] = distances[cell] + 1
                left.append(beside)
    return distances


def _moved(rows: list[str], cell: Cell, move: str) -> Cell | None:
    """Return the cell to which a move leads, holes included, or None at the edge."""
    i, j = cell[0] + _STEPS[move][0], cell[1] + _STEPS[move][1]
    return (i, j) if 0 <= i < len(rows) and 0 <= j < len(rows) else None


def _cell(rows: list[str], cell: Cell, move: str) -> str:
    there = _moved(rows, cell, move)
    return "edge" if there is None else _CELLS[rows[there[0]][there[1]]]
