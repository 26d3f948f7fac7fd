"""`PlayersProgram`: an episode of several players.

    env:
      factory: players
      options:
        play: debate.py:run
        players: {pro: policy, contra: policy, judge: {engine: openai, options: {model: ...}}}

    async def run(task, players):
        case = await players["pro"].say(f"Argue for: {task['question']}")
        ...
        return {"pro": 1.0, "contra": -1.0}     # the reward of each player that learns

Each player is one of:

    policy                                 the model that is trained; its turns are trained
    {script: file.py:function}             a function (conversation, rng) -> text
    {engine: hf, options: {model: ./m}}    another engine: a frozen copy of the model, or an endpoint (engine openai)
    {engine: hf, models: ./pool}           a model folder in `pool`, drawn for each episode: past checkpoints
    [policy, {script: ...}]                one of these, drawn for each episode

`agentloop.players` plays it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import BaseEnv
from agentloop.envs.players.player import Player
from agentloop.envs.rewards.base import OF_THE_RUN
from agentloop.errors import EnvError, UserError, named
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import check_options
from agentloop.types.returned_numbers import checked_number

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

Play = Callable[[Mapping[str, Any], Mapping[str, Player]], Awaitable[Mapping[str, float]]]
"""(task, players by name) -> the reward of each player that learns."""

POLICY = "policy"


@dataclass(slots=True, frozen=True)
class Seat:
    """The player of a seat. One of `script` and `engine` is set, or neither for the policy."""

    script: str | None = None
    engine: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine."""
    models: str | None = None
    """Folder of models, from which one is drawn for each episode."""

    @property
    def learns(self) -> bool:
        return self.script is None and self.engine is None


class PlayersProgram(BaseEnv):
    """One episode of several players.

    Each player that learns has a separate trajectory, whose `role` is the name of its seat; advantages compare the
    same role in the episodes of a group. Turns of all others are never trained.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        play: str | Play,
        players: Mapping[str, Any],
        swap: bool = False,
    ) -> None:
        """Prepare an episode. `play` is the coroutine function of the episode, or its spec ('file.py:name').

        With `swap`, episode k of a group moves each player k seats further, so that the policy plays all seats. A row
        may have `players`, which replace those of the same seat, and `seat`, which is added to k. Raises `UserError`.
        """
        if toolset is not None and toolset.tools:
            raise UserError("env.tools is set, but the players of an episode have no tools. Leave env.tools out.")
        if reward is not None:
            raise UserError("env.reward is set, but `play` returns the reward of each player. Leave env.reward out.")
        super().__init__(row)
        if not isinstance(players, Mapping):
            raise UserError(f"`players` in env.options is {players!r}: name each seat, as in {{first: policy}}.")
        self._play = load_object(play, "program of several players") if isinstance(play, str) else play
        if not inspect.iscoroutinefunction(self._play):
            raise UserError(f"`play` must be `async def run(task, players)`; {play!r} is not a coroutine function.")
        if taken := sorted(OF_THE_RUN.intersection(players)):
            raise UserError(
                f"A player in env.options is named {taken[0]!r}, but reward/{taken[0]} in the log is the run's own: "
                "rename the player."
            )
        unknown = [name for name in row.get("players") or {} if name not in players]
        if unknown:
            raise UserError(
                f"The row {row.get('id')!r} names the players {unknown}, but env.options has {list(players)}."
            )
        self._seat = _number(row)
        self._specs = {**players, **(row.get("players") or {})}
        if not self._specs:
            raise UserError("`players` in env.options is empty: name each seat, as in {first: policy, second: policy}.")
        self._seats = {name: _seats_of(name, spec) for name, spec in self._specs.items()}
        if not any(all(seat.learns for seat in seats) for seats in self._seats.values()):
            raise UserError(
                f"No player of {list(self._seats)} is always the policy, so some episodes have no turn to train: set "
                "one of them to policy in env.options."
            )
        self._swap = swap
        self._rewards: Mapping[str, float] = {}

    @property
    def candidates(self) -> list[Seat]:
        """Every player that `seats` may return."""
        return [seat for seats in self._seats.values() for seat in seats]

    def seats(self, place: int, seed: int) -> dict[str, Seat]:
        """Return the player of each seat in episode `place` of the group. `seed` decides random draws."""
        rng = random.Random(seed)
        drawn = [rng.choice(seats) for seats in self._seats.values()]
        shift = (place + self._seat) % len(drawn) if self._swap else 0
        return dict(zip(self._seats, [*drawn[-shift:], *drawn[:-shift]] if shift else drawn, strict=True))

    async def play(self, players: Mapping[str, Player]) -> None:
        """Play the episode to its end. Raises `EnvError` if a player that learns gets no reward."""
        rewards = await self._play(self.task, players)
        learners = [name for name, player in players.items() if player.learns]
        if not isinstance(rewards, Mapping) or any(name not in rewards for name in learners):
            raise EnvError(f"{named(self._play)} returned no reward for each of {learners}: return {{name: reward}}")
        self._rewards = {name: checked_number(rewards[name], self._play) for name in learners}

    def reward_of(self, role: str) -> float:
        """Return the reward of a player. Raises `LookupError` if the episode ended without one."""
        if role not in self._rewards:
            raise LookupError(f"the episode ended before {role or 'its players'} had a reward")
        return self._rewards[role]

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the player of this trajectory; its branches have their own."""
        return self.reward_of(trajectory.role)


def _number(row: Mapping[str, Any]) -> int:
    seat = row.get("seat", 0)
    try:
        return int(seat)
    except (TypeError, ValueError) as error:
        raise UserError(f"The row {row.get('id')!r} has {seat!r} in its column seat: write a number.") from error


def _seats_of(name: str, spec: Any) -> Sequence[Seat]:
    """Return the seats to draw from. Raises `UserError`."""
    specs = spec if isinstance(spec, list) else [spec]
    if not specs:
        raise UserError(f"The player {name!r} in env.options is an empty list: name at least one player.")
    return [_seat_of(name, each) for each in specs]


def _seat_of(name: str, spec: Any) -> Seat:
    if spec == POLICY:
        return Seat()
    if not isinstance(spec, Mapping) or ("script" in spec) == ("engine" in spec):
        raise UserError(
            f"The player {name!r} in env.options is {spec!r}: write policy, {{script: ...}} or {{engine: ...}}."
        )
    check_options(spec, ("script",) if "script" in spec else ("engine", "options", "models"), of=f"player {name!r}")
    return Seat(**spec)
