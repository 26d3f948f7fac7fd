"""`TextArena`: games of TextArena for one and several players, and the rows of `data.train`.

data:
  train: agentloop.envs.textarena.env:tasks
  train_options: {games: Nim-v0, size: 4096}
  eval: agentloop.envs.textarena.env:tasks
  eval_options: {games: Nim-v0, size: 100, seed: 1000000}
env:
  factory: textarena
  options: {players: {first: policy, second: policy}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentloop.envs.players.player import Player, PlayerStopped
from agentloop.envs.players.program import POLICY, PlayersProgram
from agentloop.envs.players.turns import lost_by
from agentloop.envs.workers.interpreters import interpreter_of
from agentloop.envs.workers.pool import check_limits, check_starts, options_of, pool_of, rows_of
from agentloop.envs.workers.process import Program
from agentloop.errors import EnvError, UserError

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

_NAME = "textarena"
_BRACKETS = re.compile(r"\[[^\[\]]*\]")

Moves = Literal["turn", "brackets"]


class TextArena(PlayersProgram):
    """Game of TextArena. The players have its seats 0, 1, ... in the order of `players`.

    The game gives each player its reward, mostly 1, 0 or -1.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        players: Mapping[str, Any] | None = None,
        swap: bool = False,
        moves: Moves = "turn",
        python: str | None = None,
        processes: int = 1,
        step_timeout: float = 60.0,
    ) -> None:
        """Prepare the game of a row of `tasks`. Raises `UserError` if the package is not installed.

        `PlayersProgram` explains `players` and `swap`; by default the policy plays alone. With `moves` "brackets" the
        game, and so the other players, get only the last [...] of a turn instead of the whole turn. `WorkerEnv`
        explains `python`, `processes` and `step_timeout`.
        """
        super().__init__(
            row,
            toolset=toolset,
            reward=reward,
            play=self._play_game,
            players={"player": POLICY} if players is None else players,
            swap=swap,
        )
        check_limits(_NAME, processes=processes, step_timeout=step_timeout)
        if "game" not in row or "seed" not in row:
            raise UserError(
                f"The row {row.get('id')!r} has no game or no seed: use the rows of agentloop.envs.textarena.env:tasks."
            )
        if moves not in get_args(Moves):
            raise UserError(f"`moves` of textarena is {moves!r}: write turn or brackets.")
        self._brackets = moves == "brackets"
        self._program = program(python)
        self._processes = processes
        self._seconds = step_timeout
        self._invalid: dict[str, float] = {}

    @classmethod
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Begin each game with the players of the run. Raises `UserError`."""
        envs = [cls(row, **options) for row in {row.get("game"): row for row in rows}.values()]
        count = len(envs[0]._seats)
        starts = {f"{env.task['game']} with the {count} players of env.options": env._start(count) for env in envs}
        check_starts(envs[0]._program, starts, seconds=envs[0]._seconds)

    def _start(self, players: int) -> dict[str, Any]:
        """Return the arguments with which the worker begins the game."""
        task = self.task
        return {
            "game": task["game"],
            "seed": task["seed"],
            "options": task.get("options") or {},
            "players": players,
        }

    async def score(self, trajectory: Trajectory) -> float:
        trajectory.metrics |= self._invalid
        return await super().score(trajectory)

    async def _play_game(self, task: Mapping[str, Any], players: Mapping[str, Player]) -> Mapping[str, float]:
        """Play the game to its end. A player whose conversation reaches a limit loses, as in `play_turns`."""
        names = list(players)
        pool = pool_of(self._program, processes=self._processes)
        async with pool.episode(self._start(len(names)), seconds=self._seconds) as game:
            state = game.first
            while "rewards" not in state:
                if state["player"] >= len(names):
                    raise EnvError(f"{task['game']} asks player {state['player']}, but only {len(names)} play")
                name = names[state["player"]]
                try:
                    text = await players[name].say(state["text"])
                except PlayerStopped:
                    return lost_by(name, players)
                state = await game.step({"text": self._move(text)})
        for number, name in enumerate(names):
            if players[name].learns:
                self._invalid[f"reward/invalid_move/{name}"] = float(number in state["invalid"])
        return {names[int(number)]: reward for number, reward in state["rewards"].items()}

    def _move(self, text: str) -> str:
        if not self._brackets:
            return text
        found = _BRACKETS.findall(text)
        return found[-1] if found else ""


def tasks(
    games: str | Sequence[str] | Mapping[str, Mapping[str, Any] | None],
    *,
    size: int = 1000,
    seed: int = 0,
    python: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield `size` games as rows, with the seeds `seed`, `seed` + 1, ...

    Give held-out rows a seed that no training row has, such as 1000000.
    `games` is an id such as Nim-v0, a list of ids to take in turn, or id -> arguments of the game, as in
    {Nim-v0: {piles: [1, 2, 3]}}. Raises `UserError` for games that do not exist, lack data or refuse the arguments.
    """
    if size < 1:
        raise UserError(f"`size` of the textarena tasks must be at least 1, got {size}.")
    given = options_of(games, key="games")
    if not given:
        raise UserError("`games` of the textarena tasks is empty: name a game, such as Nim-v0.")
    specs = {name: dict(options or {}) for name, options in given.items()}
    yield from rows_of(program(python), {"games": specs, "size": size, "seed": seed})


def program(python: str | None = None) -> Program:
    """Return the worker of TextArena. Raises `UserError` if the package is not installed."""
    return Program(_NAME, interpreter_of(_NAME, python), Path(__file__).with_name("worker.py"))
