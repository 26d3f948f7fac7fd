"""`Env`: the other side of the conversation, in message space. Single-use: one instance is one episode."""

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
    """New messages for the model: the first prompt, or what answers its last turn."""

    messages: Sequence[Message] = field(default_factory=tuple)


class Env(ABC):
    """One episode's environment.

    The loop runs the calls of a turn itself, on `toolset`; `step` gets the turns that call nothing. Methods that are
    not `async` run in threads.
    """

    task: Mapping[str, Any] = {}
    """The dataset row; tools see it as `ctx.task`."""
    toolset: Toolset | None = None
    """The tools of this episode, shared by all episodes that have the same."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("reset", "step", "score", "close"))

    @abstractmethod
    async def reset(self) -> Observation:
        """The first prompt."""

    @abstractmethod
    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        """Answer an assistant message that has no calls: (observation, reward of this turn, terminated, truncated)."""

    async def score(self, trajectory: Trajectory) -> float:
        """The outcome reward, asked once when the episode is over and however it ended (`trajectory.stop_reason`).
        Added to the rewards of the turns."""
        return 0.0

    async def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what the episode holds; always runs."""
