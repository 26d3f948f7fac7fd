"""`AgentProgram`: an episode that is played by somebody's agent, which calls the model over OpenAI's API.

    env:
      factory: agent
      options: {agent: my_agent.py:solve}          # or command: [python, my_agent.py]
      reward: exact

    async def solve(task, model):
        client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key)
        ...
        return "the answer"

`agentloop.gateway` runs it and keeps its calls as trajectories.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentloop.envs.agent.command import run_command
from agentloop.envs.base import Env, Observation
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.types.messages import Message

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

SampledBy = Literal["run", "client"]

_THREADS = ThreadPoolExecutor(max_workers=512, thread_name_prefix="agentloop-agent")
"""For agents that are plain functions: each holds a thread for its whole episode."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where an agent finds its model, for this episode alone."""

    base_url: str
    """Ends in /v1."""
    api_key: str
    model: str
    """A name for it. Any other is answered, too."""


@dataclass(slots=True, frozen=True)
class AgentResult:
    """What an agent came to."""

    answer: str | None = None
    """None: what the model said last."""
    reward: float | None = None
    """Of the whole episode, added to that of `env.reward`."""


Agent = Callable[[Mapping[str, Any], Endpoint], "Awaitable[Any] | Any"]
"""(task, endpoint) -> an answer (str), a reward (float), an `AgentResult`, or None."""


class AgentProgram(Env):
    """One episode of an agent.

    `agent` is a function, or the spec of one ('file.py:name'); a plain one runs in a thread. `command` is started in
    its place, see `agentloop.envs.agent.command`. `sampling`: whether temperature, top_p, top_k and seed are those of
    the `run` or of the `client`'s requests. The gateway listens on `host`, and agents reach it under `advertised`.

    Whatever the agent raises ends its episode as a failure of the environment, except behind a call that was refused
    for a limit: that is what ended the episode then.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        agent: Agent | str | None = None,
        command: Sequence[str] | None = None,
        sampling: SampledBy = "run",
        host: str = "127.0.0.1",
        advertised: str | None = None,
    ) -> None:
        if (agent is None) == (command is None):
            raise UserError("Name the agent: either `agent` ('file.py:name') or `command` (a list), in env.options.")
        if toolset is not None and toolset.tools:
            raise UserError("env.tools is set, but an agent brings tools of its own. Leave env.tools out.")
        if sampling not in get_args(SampledBy):
            raise UserError(f"`sampling` in env.options is 'run' or 'client', not {sampling!r}.")
        self.task = row
        self.sampling = sampling
        self.host = host
        self.advertised = advertised
        self._agent = load_object(agent, "agent") if isinstance(agent, str) else agent
        self._command = command
        self._reward = reward
        self._result = AgentResult()

    async def play(self, endpoint: Endpoint) -> AgentResult:
        """Run the agent to its end. Raises whatever it raises."""
        if self._command is not None:
            found: Any = await run_command(self._command, self.task, endpoint)
        elif inspect.iscoroutinefunction(self._agent):
            found = await self._agent(self.task, endpoint)
        else:
            assert self._agent is not None
            found = await asyncio.get_running_loop().run_in_executor(_THREADS, self._agent, self.task, endpoint)
            if inspect.isawaitable(found):
                found = await found
        self._result = _as_result(found)
        return self._result

    async def score(self, trajectory: Trajectory) -> float:
        """The agent's reward and that of `env.reward`. Raises `LookupError` where there is neither: such an episode
        has no reward, which is not a reward of 0."""
        own = self._result.reward
        if self._reward is not None:
            return (own or 0.0) + await self._reward(trajectory, self.task)
        if own is None:
            raise LookupError("the agent returned no reward, and the config names none (env.reward)")
        return own

    async def reset(self) -> Observation:
        raise UserError("An agent program is played by `AgentLoop.run`, not step by step.")

    async def step(self, message: Message) -> tuple[Observation, float, bool, bool]:
        raise UserError("An agent program is played by `AgentLoop.run`, not step by step.")


def _as_result(found: object) -> AgentResult:
    if found is None or isinstance(found, AgentResult):
        result = found or AgentResult()
    elif isinstance(found, str):
        result = AgentResult(answer=found)
    elif isinstance(found, bool | int | float):
        result = AgentResult(reward=float(found))
    else:
        raise TypeError(
            f"the agent returned {type(found).__name__}; it may return an answer (str), a reward (float), an "
            "AgentResult, or None"
        )
    if result.reward is not None and not math.isfinite(result.reward):
        raise ValueError(f"the agent's reward is {result.reward}, which is not finite")
    return result
