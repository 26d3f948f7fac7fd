"""`Env`: answers the model with messages. Single-use: one instance is one episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from agentloop.process.threads import run_in_threads
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory


@dataclass(slots=True, frozen=True)
class Observation:
    """New messages for the model: the first prompt, or the answer to its last turn."""

    messages: Sequence[Message] = field(default_factory=tuple)


class BaseEnv(ABC):  # noqa: B024 - subclasses define how an episode is played
    """Common base of all environments: the task, the score and the end of an episode.

    `Env` answers the model turn by turn; `agentloop.envs.agent.program.AgentProgram` plays whole episodes itself.
    Methods that are not `async` run in threads.
    """

    needs_prompt = False
    """Whether the rows must have a prompt. An environment that writes its own needs none."""
    task: Mapping[str, Any] = {}
    """The dataset row; tools see it as `ctx.task`."""
    toolset: Toolset | None = None
    """The tools of this episode, shared by all episodes with the same tools."""
    reward_function: RewardFunction | None = None
    """The reward that the config names; None if it names none."""

    def __init__(
        self,
        row: Mapping[str, Any] = MappingProxyType({}),
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
    ) -> None:
        """Play the task `row`. A subclass may take fewer parts; `agentloop.envs.registry.make_env` sets the others."""
        self.task = row
        self.toolset = toolset
        self.reward_function = reward

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("score", "close"))

    @classmethod  # noqa: B027 - the options of most environments fit any row
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Raise `UserError` if `env.options` do not fit the rows of a run. Called once, when the run is loaded."""

    def prepare(self) -> None:  # noqa: B027 - most environments begin at once
        """Begin slow work in the background, such as the start of a machine, and return at once.

        The worker calls this for waiting episodes, `env.prepare_ahead` of them at a time. `close` has to undo it, even
        if the episode never begins.
        """

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the outcome, which is added to the rewards of the turns. Default: `env.reward`.

        The loop calls this once after the end of the episode, unless `trajectory.stop_reason` is a failure. Errors
        count as failures of the judge.
        """
        return 0.0 if self.reward_function is None else await self.reward_function(trajectory, self.task)

    async def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release the resources of the episode. Always runs."""


class Env(BaseEnv):
    """The environment of one episode.

    The loop runs the calls of a turn itself, on `toolset`; `step` gets the turns without calls.
    """

    takes_cut_turns = False
    """Whether `step` also gets turns that a token limit cut, with the `finish_reason` "length". By default such a turn
    ends the episode."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run_in_threads(cls, ("reset", "step"))

    @abstractmethod
    async def reset(self) -> Observation:
        """Return the first prompt."""

    @abstractmethod
    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        """Answer an assistant message without calls: (observation, reward of the turn, terminated, truncated)."""
