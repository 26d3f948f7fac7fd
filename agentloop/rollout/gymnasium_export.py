"""`ExportedEnv`: an environment of agentloop as a `gymnasium.Env`, for whatever plays those.

Observations and actions are text. An action is a turn of the model; a call in it is written as models of the Hermes
family write one, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. What text does not hold is in
`info["messages"]`: all new messages, with their roles and images.
"""

from __future__ import annotations

import asyncio
import string
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import gymnasium
from gymnasium import spaces

from agentloop.envs.base import Env
from agentloop.errors import EnvError
from agentloop.rendering.formats.json_calls import HERMES
from agentloop.rendering.parsing import TurnParser
from agentloop.tools.base import ToolResult
from agentloop.types.limits import StopReason
from agentloop.types.messages import InvalidCall, Message, ParsedTurn, ToolCall, text_of
from agentloop.types.trajectory import Trajectory

R = TypeVar("R")


class AnyText(spaces.Text):
    """Text of any characters; samples are printable ASCII."""

    def __init__(self, max_length: int, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class ExportedEnv(gymnasium.Env[str, str]):
    """One environment after another: `reset` takes one of the rows at random, by its seed, or `options={"row": k}`.

    The reward of the last step includes what `Env.score` says. Raises `EnvError` where the environment fails.

    Args:
        make_env: Gives the environment of a row, single-use: `partial(ToolEnv, toolset=..., reward=...)`.
        rows: The tasks.
        max_turns: Steps after which an episode is truncated.
        max_chars: Of an observation, which is cut to that, and of a sampled action.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium has it

    def __init__(
        self,
        make_env: Callable[[Mapping[str, Any]], Env],
        rows: Sequence[Mapping[str, Any]],
        *,
        max_turns: int = 16,
        max_chars: int = 100_000,
    ) -> None:
        self.observation_space = AnyText(max_chars)
        self.action_space = AnyText(max_chars)
        self._make_env = make_env
        self._rows = rows
        self._max_turns = max_turns
        self._max_chars = max_chars
        self._episode: _Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        row = self._rows[(options or {}).get("row", int(self.np_random.integers(len(self._rows))))]
        self._episode = _Episode(self._make_env(row), int(self.np_random.integers(2**31)))
        return self._shown(_run(self._episode.reset()))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._episode is None or self._episode.is_over:
            raise gymnasium.error.ResetNeeded("This episode is over, or none was begun: call reset().")
        messages, reward = _run(self._episode.step(str(action), self._max_turns))
        reason = self._episode.trajectory.stop_reason
        is_truncated = reason is StopReason.ENV_TRUNCATED or (reason is not None and reason.is_truncated)
        observation, info = self._shown(messages)
        if reason is not None:
            info["stop_reason"] = str(reason)
        return observation, reward, reason is not None and not is_truncated, is_truncated, info

    def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            _run(episode.close())

    def _shown(self, messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
        text = "\n\n".join(text_of(message.get("content", "")) for message in messages)
        return text[: self._max_chars], {"messages": list(messages)}


class _Episode:
    """What `AgentLoop` does with an environment, without tokens."""

    def __init__(self, env: Env, seed: int) -> None:
        self.env = env
        self.trajectory = Trajectory(trajectory_id=f"exported-{seed}", task=dict(env.task))
        self.is_over = False
        self._seed = seed
        self._images: list[Any] = []
        self._sessions: Any = None

    async def reset(self) -> Sequence[Message]:
        observation = await self.env.reset()
        if self.env.toolset is not None:
            await self.env.toolset.start()
            self._sessions = self.env.toolset.sessions(
                self.trajectory.trajectory_id, self.env.task, self._seed, self._images, self.env
            )
        self.trajectory.messages.extend(observation.messages)
        return observation.messages

    async def step(self, text: str, max_turns: int) -> tuple[Sequence[Message], float]:
        parsed = _parse(text, self.env)
        self.trajectory.messages.append(parsed.message())
        messages, reward, reason = await (self._calls(parsed) if parsed.calls else self._answer(parsed))
        self.trajectory.messages.extend(messages)
        self.trajectory.turn_rewards.append(reward)
        if reason is None and len(self.trajectory.turn_rewards) >= max_turns:
            reason = StopReason.MAX_TURNS
        self.trajectory.stop_reason = reason
        if reason is not None:
            self.is_over = True
            reward += await self.env.score(self.trajectory)
        return messages, reward

    async def _answer(self, parsed: ParsedTurn) -> tuple[Sequence[Message], float, StopReason | None]:
        observation, reward, terminated, truncated = await self.env.step(parsed.message())
        reason = StopReason.COMPLETED if terminated else StopReason.ENV_TRUNCATED if truncated else None
        return observation.messages, reward, reason

    async def _calls(self, parsed: ParsedTurn) -> tuple[Sequence[Message], float, StopReason | None]:
        results = [await self._call(call) for call in parsed.calls]
        messages: list[Message] = [
            {"role": "tool", "content": result.content, "tool_call_id": call.id}
            for call, result in zip(parsed.calls, results, strict=True)
        ]
        stop = next((result.stop for result in results if result.stop), None)
        reason = StopReason.TOOL_STOPPED if stop is True else stop or None
        if reason is not None and reason.is_failure:
            raise EnvError(text_of(messages[-1]["content"]))
        return messages, sum(result.reward for result in results), reason

    async def _call(self, call: ToolCall | InvalidCall) -> ToolResult:
        if isinstance(call, InvalidCall):
            return ToolResult(call.error, is_error=True)
        if self._sessions is None:
            return ToolResult(f"There is no tool {call.name!r}: this task has no tools.", is_error=True)
        result: ToolResult = await self._sessions.call(call, time.monotonic() + 3600)
        return result

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.close()
        await self.env.close()


def _parse(text: str, env: Env) -> ParsedTurn:
    schemas = env.toolset.schemas if env.toolset is not None else ()
    return _PARSER.parse(text, tools=schemas)


_PARSER = TurnParser(HERMES)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop in a thread of its own: callers may have one running in theirs, as notebooks do."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentloop-exported-envs", daemon=True).start()
    return loop


def _run(coroutine: Coroutine[Any, Any, R]) -> R:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()
