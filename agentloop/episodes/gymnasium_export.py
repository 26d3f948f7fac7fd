"""`ExportedEnv`: an environment of agentloop as a `gymnasium.Env`.

Observations and actions are text. An action is a turn of the model. It writes a call as Hermes models do:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. `AgentLoop` plays the episode with an engine that waits for
the next action, so tools, limits and scores behave as in training.
"""

from __future__ import annotations

import asyncio
import string
import threading
import uuid
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import gymnasium
from gymnasium import spaces

from agentloop.engines.base import Engine, FinishReason, Generation, SamplingParams
from agentloop.envs.base import Env
from agentloop.episodes.loop import AgentLoop
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import EnvError
from agentloop.types.limits import Limits
from agentloop.types.messages import Message, text_of
from agentloop.types.trajectory import Trajectory

R = TypeVar("R")

_NO_LIMIT = 2**31 - 1


class AnyText(spaces.Text):
    """Text of any characters; samples are printable ASCII."""

    def __init__(self, max_length: int, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class ExportedEnv(gymnasium.Env[str, str]):
    """A `gymnasium.Env` whose `reset` draws a row by its seed, or takes `options={"row": k}`.

    The reward of the last step includes the result of `Env.score`. `info["messages"]` has the new messages with their
    roles and images, `info["failures"]` counts failures by kind, and the last step adds `info["stop_reason"]`. Raises
    `EnvError` if the environment or its reward fails.

    Args:
        make_env: Creates the environment of a row, for one episode: `partial(ToolEnv, toolset=..., reward=...)`.
        rows: The tasks.
        max_turns: Number of steps after which an episode is truncated.
        max_chars: Length at which observations, tool results and sampled actions are cut.
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
        self._max_chars = max_chars
        unbounded = ("max_turn_tokens", "max_tokens", "max_seconds", "max_env_seconds", "max_reward_seconds")
        no_limits = dict.fromkeys(unbounded, _NO_LIMIT)
        self._limits = Limits(max_turns=max_turns, max_observation_tokens=max_chars, **no_limits)
        self._episode: _Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        row = self._rows[(options or {}).get("row", int(self.np_random.integers(len(self._rows))))]
        self._episode = _Episode(self._make_env(row), self._limits)
        messages = _run(self._episode.reset(int(self.np_random.integers(2**31))))
        return self._observe(messages, self._episode)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._episode is None or self._episode.is_over:
            raise gymnasium.error.ResetNeeded("The episode is over, or has not started. Call reset().")
        messages, reward = _run(self._episode.step(str(action)))
        observation, info = self._observe(messages, self._episode)
        reason = self._episode.trajectory.stop_reason
        if reason is None:
            return observation, reward, False, False, info
        info["stop_reason"] = str(reason)
        return observation, reward, not reason.is_truncated, reason.is_truncated, info

    def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            _run(episode.close())

    def _observe(self, messages: Sequence[Message], episode: _Episode) -> tuple[str, dict[str, Any]]:
        text = "\n\n".join(text_of(message.get("content", "")) for message in messages)
        return text[: self._max_chars], {"messages": list(messages), "failures": dict(episode.trajectory.failures)}


class _Episode:
    """An episode that `AgentLoop` plays in a task, and the part of an engine that the loop calls."""

    max_model_len = _NO_LIMIT

    def __init__(self, env: Env, limits: Limits) -> None:
        self.trajectory = Trajectory(trajectory_id=f"exported-{uuid.uuid4().hex}")
        self._env = env
        self._loop = AgentLoop(cast(Engine, self), TextRenderer(), limits=limits)
        self._task: asyncio.Task[Trajectory] | None = None
        self._actions: asyncio.Queue[str] = asyncio.Queue()
        self._is_due = asyncio.Event()
        """Set when an action is due or the episode is over."""

    @property
    def is_over(self) -> bool:
        return self._task is None or self._task.done()

    async def reset(self, seed: int) -> Sequence[Message]:
        if self._env.toolset is not None:
            await self._env.toolset.start()
        self._task = asyncio.create_task(self._loop.play(self._env, self.trajectory, seed=seed))
        self._task.add_done_callback(lambda _: self._is_due.set())
        return (await self._wait(self._task, 0))[0]

    async def step(self, action: str) -> tuple[Sequence[Message], float]:
        assert self._task is not None
        self._is_due.clear()
        self._actions.put_nowait(action)
        return await self._wait(self._task, len(self.trajectory.messages) + 1)  # without the action's own message

    async def _wait(self, task: asyncio.Task[Trajectory], start: int) -> tuple[Sequence[Message], float]:
        """Wait until an action is due or the episode is over; return the messages from `start`, and the reward."""
        await self._is_due.wait()
        trajectory = task.result() if task.done() else self.trajectory
        *earlier, reward = trajectory.turn_rewards or [0.0]
        if not task.done():
            return trajectory.messages[start:], reward
        if trajectory.reward is None:
            raise EnvError(str(trajectory.error))
        return trajectory.messages[start:], trajectory.reward - sum(earlier)

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, trajectory_id: str, images: Sequence[Any] = ()
    ) -> Generation:
        self._is_due.set()
        ids = array("i", [*map(ord, await self._actions.get()), END])
        return Generation(ids, array("f", [0.0]) * len(ids), array("i", [0]) * len(ids), FinishReason.STOP)

    def release(self, trajectory_id: str) -> None:
        """Do nothing: there is no cache."""

    async def close(self) -> None:
        if self._task is None:
            await self._env.close()
        elif self._task.cancel():
            await asyncio.wait([self._task])


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Start one event loop in a separate thread, because the caller's thread may already run one, as in notebooks."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agentloop-exported-envs", daemon=True).start()
    return loop


def _run(coroutine: Coroutine[Any, Any, R]) -> R:
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()
