"""`Env`: answers the model with messages. Single-use: one instance is one episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentloop.process.threads import run_in_threads
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True, frozen=True)
class Observation:
    """New messages for the model: the first prompt, or the answer to its last turn."""

    messages: Sequence[Message] = field(default_factory=tuple)


class BaseEnv(ABC):  # noqa: B024 - subclasses say how an episode is played
    """Task, score and end of an episode: what all kinds of environments have.

    `Env` answers the model turn by turn; `agentloop.envs.agent.program.AgentProgram` plays whole episodes itself.
    Methods that are not `async` run in threads.
    """

    task: Mapping[str, Any] = {}
    """The dataset row; tools see it as `ctx.task`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("score", "close"))

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the outcome, which is added to the rewards of the turns.

        The loop calls it once, after the end of the episode, for every `trajectory.stop_reason` but failures.
        """
        return 0.0

    async def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what the episode holds; always runs."""


class Env(BaseEnv):
    """The environment of one episode.

    The loop runs the calls of a turn itself, on `toolset`; `step` gets the turns without calls.
    """

    toolset: Toolset | None = None
    """The tools of this episode, shared by all episodes that have the same."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("reset", "step"))

    @abstractmethod
    async def reset(self) -> Observation:
        """Return the first prompt."""

    @abstractmethod
    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        """Answer an assistant message without calls: (observation, reward of the turn, terminated, truncated)."""
