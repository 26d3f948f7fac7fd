"""`GymnasiumEnv`: plays any gymnasium.Env as an environment of agentloop.

    env:
      factory: gymnasium
      options: {id: FrozenLake-v1, options: {map_name: 4x4, render_mode: ansi},
                action_names: [left, down, right, up]}

It runs in threads. The model sees text or images and answers with calls of `act(...)` or text. Each move has a reward.
`terminated` becomes COMPLETED, and `truncated` (a time limit) becomes ENV_TRUNCATED.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from agentloop.envs.acting import ActingEnv, ActionMode, Move, with_act
from agentloop.envs.gymnasium.blueprint import Blueprint, blueprint_of
from agentloop.envs.gymnasium.game import Game
from agentloop.errors import EnvError, UserError
from agentloop.registry.named_objects import load_object
from agentloop.tools.schema import ArgumentError
from agentloop.types.messages import Content

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset

Show = Literal["observation", "render", "both"]


class GymnasiumEnv(ActingEnv):
    """Episode of a gymnasium environment.

    Rows may have `seed`, `env_options` (added to `options`) and `reset_options`.

    Args:
        id: Id in gymnasium's registry, "module:Name-v0", or a class: 'file.py:Class', 'package.module:Class'.
        options: Arguments of `gymnasium.make`, such as `render_mode`.
        actions: "tool" for calls of `act(...)`, "text" for turns of plain text.
        show: "observation", "render" or both: the parts that the model sees. Default: the rendering if there is a
            `render_mode`, else the observation.
        action_names: Words for the actions of a Discrete space.
        observation_names: Words for the elements of an observation, or for the values of a Discrete one.
        action_pattern: Regular expression. Its last match in a turn of text (its first group) is the action.
        read_action: 'file.py:function' that converts the text of a turn to the action. The model reads a ValueError.
        observe: 'file.py:function', called as (observation, info, env), that returns the content of a message.
        step_timeout: Maximum seconds of one call of the environment. After that the episode fails.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        *,
        toolset: Toolset | None = None,
        reward: RewardFunction | None = None,
        id: str,
        options: Mapping[str, Any] | None = None,
        actions: ActionMode = "tool",
        show: Show | None = None,
        action_names: Sequence[str] = (),
        observation_names: Sequence[str] = (),
        action_pattern: str | None = None,
        read_action: str | None = None,
        observe: str | None = None,
        step_timeout: float = 60.0,
        max_invalid_actions: int = 3,
    ) -> None:
        super().__init__(row, toolset=toolset, reward=reward, actions=actions, max_invalid_actions=max_invalid_actions)
        options = {**(options or {}), **(row.get("env_options") or {})}
        self._blueprint: Blueprint = blueprint_of(id, options, tuple(action_names))
        if actions == "tool":
            self.toolset = with_act(toolset, self._blueprint.act)
        self._action_names = tuple(action_names)
        self._observation_names = tuple(observation_names)
        self._show = show or ("render" if options.get("render_mode") else "observation")
        if self._show not in get_args(Show) or (self._show != "observation" and not options.get("render_mode")):
            raise UserError(
                f"`show` must be observation, or render or both together with a render_mode, got {self._show}."
            )
        self._pattern = _compiled(action_pattern)
        self._read_action = _function(read_action, "reader of actions")
        self._observe = _function(observe, "function that formats observations")
        self._game = Game(self._blueprint.make, timeout=step_timeout)

    async def begin(self) -> Content:
        await self._game.start()
        content = await self._game.run(self._reset)
        if self._actions == "tool" or self._pattern is not None or self._read_action is not None:
            return content
        return self._with_hint(content)

    async def move(self, arguments: dict[str, Any]) -> Move:
        action = arguments["action"] if "action" in arguments and not self._is_dict else arguments
        try:
            return await self._game.run(self._step, action)
        except EnvError:
            raise
        except Exception as error:  # the boundary: third-party code
            raise EnvError(f"the environment's step raised {type(error).__name__}: {error}") from error

    def read(self, text: str) -> dict[str, Any]:
        from agentloop.envs.gymnasium.text_actions import action_in

        space = self._blueprint.action_space
        if self._read_action is not None:
            try:
                action = self._read_action(text)
            except ValueError as error:
                raise ArgumentError(str(error)) from error
            if not space.contains(action):
                raise ArgumentError(f"This is not an action of {space}: {action!r}")
            return {"action": action} if not self._is_dict else dict(action)
        value = action_in(text, space, self._action_names, self._pattern)
        return self._blueprint.arguments.validate(value if self._is_dict else {"action": value})

    async def close(self) -> None:
        await self._game.close()

    @property
    def _is_dict(self) -> bool:
        from gymnasium import spaces

        return isinstance(self._blueprint.action_space, spaces.Dict)

    def _reset(self) -> Content:
        options = self.task.get("reset_options")
        observation, info = self._game.env.reset(seed=self.seed, options=dict(options) if options else None)
        return self._content(observation, info)

    def _step(self, action: Any) -> Move:
        observation, reward, terminated, truncated, info = self._game.env.step(action)
        reward = float(reward)
        if not math.isfinite(reward):
            raise EnvError(f"the environment gave the reward {reward}")
        return Move(self._content(observation, info), reward, bool(terminated), bool(truncated))

    def _content(self, observation: Any, info: Mapping[str, Any]) -> Content:
        from agentloop.envs.gymnasium import observations

        if self._observe is not None:
            return self._observe(observation, info, self._game.env)
        parts: observations.Parts = []
        if self._show != "render":
            parts += observations.shown(self._blueprint.observation_space, observation, self._observation_names)
        if self._show != "observation":
            parts += observations.rendered(self._game.env.render())
        return observations.content_of(parts)

    def _with_hint(self, content: Content) -> Content:
        from agentloop.envs.gymnasium.text_actions import hint

        schema = self._blueprint.arguments.schema
        inner = schema if self._is_dict else schema["properties"]["action"]
        text = hint(self._blueprint.action_space, inner, self._action_names)
        if not text:
            return content
        return f"{content}\n\n{text}" if isinstance(content, str) else [*content, {"type": "text", "text": text}]


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise UserError(f"`action_pattern` of the environment is not a valid regular expression: {error}.") from error


def _function(spec: str | None, what: str) -> Callable[..., Any] | None:
    if spec is None:
        return None
    function = load_object(spec, what)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise UserError(f"The {what} {spec!r} must be a synchronous function.")
    return function
