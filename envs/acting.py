"""`ActingEnv`: base class of games, in which each turn of the model is a move: a tool call, or text.

Subclasses start the game, make moves and parse moves from text. This module turns that into observations, rewards,
feedback on invalid moves, and the end of the episode.
"""

from __future__ import annotations

import asyncio
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentloop.envs.base import Env, Observation
from agentloop.errors import EnvError, FailureKind, UnscoredError, UserError
from agentloop.tools.base import ArgumentSchema, Tool, ToolContext, ToolResult
from agentloop.tools.schema import ArgumentError
from agentloop.tools.toolset import Toolset
from agentloop.types.limits import StopReason
from agentloop.types.messages import Content, Message, text_of

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.types.trajectory import Trajectory

ActionMode = Literal["tool", "text"]


@dataclass(slots=True, frozen=True)
class Move:
    """Result of a move."""

    content: Content
    """Observation for the model."""
    reward: float | None
    """Reward of the move. None means that the environment does not score it; it does not count as 0."""
    terminated: bool = False
    truncated: bool = False
    is_error: bool = False
    """Whether the requested action failed. The content says why, and the game continues."""


class Act(Tool):
    """Tool that makes a move in the environment of the episode."""

    name = "act"
    timeout = float("inf")  # the environment has its own timeout, and an interrupted move would break it

    def __init__(self, arguments: ArgumentSchema, description: str = "Make a move.") -> None:
        self.arguments = arguments
        self.description = description

    async def call(self, ctx: ToolContext, /, **arguments: Any) -> ToolResult:  # type: ignore[override]
        env: ActingEnv = ctx.env
        return await env.act(arguments)


class ActingEnv(Env):
    """Game. With `actions="tool"` the model calls `act(...)`; with "text" the text of its turn is the move.

    The prompt begins with `row["messages"]`. `row["seed"]`, or a hash of the id, seeds the game, so all episodes of a
    group begin in the same state. The outcome is the sum of the rewards of the moves, plus the optional `reward`. A
    turn without a valid move gets feedback, and `max_invalid_actions` of them in a row truncate the episode.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        actions: ActionMode = "tool",
        max_invalid_actions: int = 3,
    ) -> None:
        if actions not in get_args(ActionMode):
            raise UserError(f"`actions` of the environment must be 'tool' or 'text', got {actions!r}.")
        if max_invalid_actions < 1:
            raise UserError(f"`max_invalid_actions` of the environment must be at least 1, got {max_invalid_actions}.")
        super().__init__(row, toolset=toolset, reward=reward)
        self._actions = actions
        self._max_invalid = max_invalid_actions
        self._turn = asyncio.Lock()
        self._invalid_in_a_row = 0
        self._invalid = 0
        self._num_moves = 0
        self._is_scored = False
        self._is_over = False

    @property
    def seed(self) -> int:
        """Seed of the game, 31 bits."""
        own = self.task.get("seed")
        return int(own) & 0x7FFFFFFF if own is not None else zlib.crc32(str(self.task.get("id", "")).encode()) >> 1

    @abstractmethod
    async def begin(self) -> Content:
        """Start the game and return the first observation, which follows the prompt of the row."""

    @abstractmethod
    async def move(self, arguments: dict[str, Any]) -> Move:
        """Make a move with the arguments of the tool.

        Raises `ArgumentError` for an invalid move, and `EnvError` if the game itself fails.
        """

    @abstractmethod
    def read(self, text: str) -> dict[str, Any]:
        """Parse a turn of plain text into the arguments of a move. Raises `ArgumentError`, for the model to read."""

    async def reset(self) -> Observation:
        content = await self.begin()
        messages = list(self.task.get("messages", ()))
        if messages and messages[-1]["role"] == "user":
            content = _joined(messages.pop().get("content", ""), content)
        return Observation((*messages, {"role": "user", "content": content}))

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        if self._actions == "tool":
            return self._refuse("This was not a move: call the tool 'act' in each of your turns.")
        try:
            move = await self._made(self.read(text_of(message.get("content", ""))))
        except ArgumentError as error:
            return self._refuse(str(error))
        observation = Observation(({"role": "user", "content": move.content},))
        return observation, move.reward or 0.0, move.terminated, move.truncated

    async def act(self, arguments: dict[str, Any]) -> ToolResult:
        """Make a move for the tool. If the game fails, the episode ends."""
        async with self._turn:  # calls of one turn arrive together and run in order
            if self._is_over:
                return ToolResult("Not done: the game was over before this move.", is_error=True)
            try:
                move = await self._made(arguments)
            except ArgumentError as error:
                return ToolResult(str(error), is_error=True, failure=FailureKind.MODEL)
            except EnvError as error:
                self._is_over = True
                return ToolResult(str(error), is_error=True, failure=FailureKind.ENV, stop=StopReason.ENV_ERROR)
        stop: bool | StopReason = False
        if move.terminated or move.truncated:
            stop = StopReason.COMPLETED if move.terminated else StopReason.ENV_TRUNCATED
        return ToolResult(move.content, is_error=move.is_error, reward=move.reward or 0.0, stop=stop)

    async def score(self, trajectory: Trajectory) -> float:
        """Return the outcome reward, without the rewards of the moves, which the loop adds.

        Raises `UnscoredError` if neither exists, because a missing reward does not count as 0.
        """
        trajectory.metrics["moves"] = self._num_moves
        trajectory.metrics["invalid_moves"] = self._invalid
        for _ in range(self._invalid):
            trajectory.count(FailureKind.MODEL)
        if self.reward_function is None and self._num_moves and not self._is_scored:
            raise UnscoredError("the environment gave no reward for any move: set a reward in the config")
        return await super().score(trajectory)

    async def _made(self, arguments: dict[str, Any]) -> Move:
        move = await self.move(arguments)
        self._invalid_in_a_row = 0
        self._num_moves += 1
        self._is_scored = self._is_scored or move.reward is not None
        self._is_over = self._is_over or move.terminated or move.truncated
        return move

    def _refuse(self, feedback: str) -> tuple[Observation, float, bool, bool]:
        self._invalid += 1
        self._invalid_in_a_row += 1
        observation = Observation(({"role": "user", "content": feedback},))
        return observation, 0.0, False, self._invalid_in_a_row >= self._max_invalid


@lru_cache(maxsize=256)
def with_act(toolset: Toolset | None, *acts: Act) -> Toolset:
    """Return `toolset` with `acts` added. Cached, because renderers identify tools by the identity of their schemas."""
    return Toolset([*(toolset.tools.values() if toolset is not None else ()), *acts])


def _joined(first: Content, second: Content) -> Content:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in (first, second)]
    return [*parts[0], *parts[1]]  # type: ignore[list-item]
