"""`Env`: the environment of one episode, in message space."""

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


class Env(ABC):
    """Environment of one episode. An instance is used once.

    The loop runs the tool calls of a turn on `toolset`. `step` gets the turns without calls. Methods that are not
    `async` run in threads.
    """

    task: Mapping[str, Any] = {}
    """Dataset row, which tools see as `ctx.task`."""
    toolset: Toolset | None = None
    """Tools of this episode. Other episodes may share them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("reset", "step", "score", "close"))

    @abstractmethod
    async def reset(self) -> Observation:
        """Return the first prompt."""

    @abstractmethod
    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        """Answer an assistant message without calls. Returns (observation, reward, terminated, truncated)."""

    async def score(self, trajectory: Trajectory) -> float:
        """Return the outcome reward, which is added to the rewards of the turns.

        It is called once at the end, however the episode ended (`trajectory.stop_reason`).
        """
        return 0.0

    async def close(self) -> None:  # noqa: B027 - most environments release nothing
        """Release the resources of the episode. Always runs."""
