"""Load environments by name: those that packages registered (entry-point group `agentloop.envs`), and your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.base import BaseEnv, Env
from agentloop.envs.datasets.verl_columns import tool_selection
from agentloop.errors import UserError, WrongTypeError, named, shown
from agentloop.registry.options import as_annotated, check_call
from agentloop.registry.registry import Registry

if TYPE_CHECKING:
    from agentloop.envs.rewards import RewardFunction
    from agentloop.tools.toolset import Toolset

    Factory = Callable[..., Any]  # an `Env` or an `AgentProgram`

GROUP = "agentloop.envs"

ENVS: Registry[Factory] = Registry("environment", "env.factory", group=GROUP)

_CALLS = {"reset": 0, "step": 1, "score": 1, "close": 0}
"""Arguments of each method of an environment."""


def load_factory(spec: str, options: Mapping[str, Any] | None = None) -> Factory:
    """Return the class or function of a registered name, 'package.module:name' or 'path/to/file.py:name'.

    `make_env` calls it for every episode. Raises `UserError` if it cannot be loaded, does not create an environment, or
    cannot be called with `options`, or an option has a wrong type.
    """
    factory = ENVS.get(spec)
    if not callable(factory):
        raise UserError(
            f"The environment {spec!r} is of type {type(factory).__name__}: name an Env class, or a function that "
            "returns an Env."
        )
    if isinstance(factory, type):
        _check_class(factory, spec)
    elif inspect.iscoroutinefunction(factory):
        raise UserError(f"The environment {spec!r} is an async function. Use a plain function, and await in `reset`.")
    if options is not None:
        check_call(
            factory,
            options,
            {},
            of=f"environment {spec!r}",
            call="factory(row, **options)",
            key="env.options",
            **_accepted(factory, toolset=None, reward=None),
        )
        as_annotated(factory, options, of=f"environment {spec!r}")
    return factory


def make_env(
    factory: Factory,
    row: Mapping[str, Any],
    *,
    toolset: Toolset | None = None,
    reward: RewardFunction | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the environment of one episode: factory(row, toolset=..., reward=..., **options).

    The parameters `toolset` and `reward` of a factory are optional. This function sets the attributes `task`, `toolset`
    and `reward_function` if the factory did not. The episode gets its own copy of the row, since its code may change
    it. It has only the tools that `extra_info.tool_selection` of the row names, as in verl. Raises `WrongTypeError` if
    the factory returns no environment.
    """
    row = _copied(row)
    if toolset is not None and (names := tool_selection(row)):
        toolset = toolset.selected(names)
    env = factory(row, **_accepted(factory, toolset=toolset, reward=reward), **(options or {}))
    if not isinstance(env, BaseEnv):
        raise WrongTypeError(f"{named(factory)} returned {shown(env)} as the environment. Return an agentloop.Env.")
    if env.task is BaseEnv.task:
        env.task = row
    if env.toolset is None and isinstance(env, Env):
        env.toolset = toolset
    if env.reward_function is None:
        env.reward_function = reward
    return env


def _copied(value: Any) -> Any:
    """Copy the dicts and lists of a row, and share everything else, such as images."""
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if type(value) is list else value


def _accepted(factory: Factory, **parts: Any) -> dict[str, Any]:
    """Return the arguments for which the factory has parameters."""
    parameters = inspect.signature(factory).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: part for name, part in parts.items() if takes_any or name in parameters}


def _check_class(found: type, spec: str) -> None:
    """Raise `UserError` unless a class is an environment whose methods can be called."""
    if not issubclass(found, BaseEnv):
        if any(base.__module__.partition(".")[0] == "gymnasium" for base in found.__mro__):
            raise UserError(
                f"The environment {spec!r} is a class of gymnasium: set env.factory to gymnasium, and env.options to "
                f"{{id: {spec!r}}}."
            )
        raise UserError(f"The environment {spec!r} is a class that does not derive from agentloop.Env: derive it.")
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise UserError(
            f"The environment {spec!r} does not define {' and '.join(missing)}. An Env needs reset() and "
            "step(message), and may have score(trajectory) and close()."
        )
    for name, count in _CALLS.items():
        method = getattr(found, name, None)
        if method is None:
            continue
        try:
            inspect.signature(method).bind(None, *[None] * count)
        except TypeError as error:
            wanted = {"step": "self, message", "score": "self, trajectory"}.get(name, "self")
            raise UserError(
                f"{named(method)} cannot be called as {name}({wanted}): {error}. Change its parameters."
            ) from error
