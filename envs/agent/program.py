"""`AgentProgram`: an episode of an existing agent, which calls the model through OpenAI's or Anthropic's API.

    env:
      factory: agent
      options: {agent: my_agent.py:solve}          # or command: [python, my_agent.py], or harness: claude-code
      reward: exact

    async def solve(task, model):
        client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key)
        ...
        return "the answer"

`agentloop.gateway` runs it and records its calls as trajectories.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentloop.envs.agent.command import run_command
from agentloop.envs.agent.harnesses.running import HarnessRun
from agentloop.envs.agent.interface.endpoint import Agent, AgentResult, Endpoint, as_result
from agentloop.envs.base import BaseEnv
from agentloop.errors import UserError, named
from agentloop.process.threads import Threads
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import check_call

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

__all__ = ["Agent", "AgentProgram", "AgentResult", "Endpoint", "SampledBy"]

SampledBy = Literal["run", "client"]

_THREADS = Threads("agentloop-agent", 512)
"""Threads for agents that are plain functions. Each occupies one for its whole episode."""


class AgentProgram(BaseEnv):
    """One episode of an agent.

    `agent` is a function or its spec ('file.py:name'); a plain function runs in a thread. `command` starts a process
    instead (`agentloop.envs.agent.command`). `harness` starts a known program such as `claude-code` in a working
    directory with `task["files"]` (`agentloop.envs.agent.harnesses.running`). `program` is its path if it is not on
    PATH. With the command `check` the reward is 1 if that succeeds in the directory, else 0. When a conversation has
    `compact_at` tokens, the program replaces its history with a summary.

    `sampling` selects temperature, top_p, top_k and seed: those of the run ("run") or of the agent's requests
    ("client"). The gateway listens on `host`, and agents connect to `advertised`.

    If the agent raises, its episode ends as a failure of the environment, or at a limit if that limit refused a call.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        agent: Agent | str | None = None,
        command: Sequence[str] | None = None,
        harness: str | None = None,
        program: str | None = None,
        check: Sequence[str] | None = None,
        compact_at: int | None = None,
        sampling: SampledBy = "run",
        host: str = "127.0.0.1",
        advertised: str | None = None,
    ) -> None:
        if sum(each is not None for each in (agent, command, harness)) != 1:
            raise UserError(
                "Name the agent in env.options: one of `agent` ('file.py:name'), `command` (a list) and `harness` (a "
                "known program)."
            )
        if harness is None and any(each is not None for each in (program, check, compact_at)):
            raise UserError(
                "`program`, `check` and `compact_at` in env.options belong to a `harness`: name it, or remove them."
            )
        for option, given in (("command", command), ("check", check)):
            if given is not None and (isinstance(given, str) or not given):
                raise UserError(
                    f"`{option}` in env.options is a list of a program and its arguments, such as [python, -V], not "
                    f"{given!r}."
                )
        if toolset is not None and toolset.tools:
            raise UserError("env.tools is set, but an agent brings its own tools. Leave env.tools out.")
        if sampling not in get_args(SampledBy):
            raise UserError(f"`sampling` in env.options is 'run' or 'client', not {sampling!r}.")
        super().__init__(row, reward=reward)
        self.sampling = sampling
        self.host = host
        self.advertised = advertised
        self._agent = load_object(agent, "agent") if isinstance(agent, str) else agent
        self._command = command
        self._harness = None if harness is None else HarnessRun(harness, program, check, compact_at)
        self._result = AgentResult()

    @classmethod
    def check_rows(cls, rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        """Raise `UserError` unless the agent of the options can be called."""
        agent = cls(rows[0], **options)._agent
        if agent is not None:
            check_call(agent, {}, {}, None, of=f"agent {named(agent)}", call="(task, model)")

    async def play(self, endpoint: Endpoint) -> AgentResult:
        """Run the agent to its end. Its exceptions propagate."""
        if self._command is not None:
            found: Any = await run_command(self._command, self.task, endpoint)
        elif self._harness is not None:
            try:
                found = await self._harness.play(self.task, endpoint)
            finally:
                self._result = AgentResult(reward=self._harness.reward)
        elif inspect.iscoroutinefunction(self._agent):
            found = await self._agent(self.task, endpoint)
        else:
            assert self._agent is not None
            found = await _THREADS.run(self._agent, self.task, endpoint)
            if inspect.isawaitable(found):
                found = await found
        self._result = as_result(found)
        return self._result

    async def score(self, trajectory: Trajectory) -> float:
        """Return the agent's reward plus that of `env.reward`.

        Raises `LookupError` if there is neither, because a missing reward does not count as 0.
        """
        own = self._result.reward
        if own is None and self.reward_function is None:
            raise LookupError("the agent returned no reward, and the config names none (env.reward)")
        return (own or 0.0) + await super().score(trajectory)
