"""`Blueprint`: the constructor, spaces and tool `act` that all episodes of one gymnasium environment share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentloop.envs.acting import Act
from agentloop.envs.gymnasium.spaces import ActionArguments
from agentloop.errors import UserError, nearest
from agentloop.registry.named_objects import load_object

_REGISTERED = re.compile(r"^(?:[\w.]+:)?(?:[\w-]+/)?[\w.-]+-v\d+$")
"""Pattern of ids: [module:][namespace/]Name-v0. Any other id with a colon is the location of a class or function."""


@dataclass(frozen=True, eq=False)
class Blueprint:
    """Shared parts of the episodes of one gymnasium environment."""

    make: Callable[[], Any]
    observation_space: Any
    action_space: Any
    arguments: ActionArguments
    act: Act


_CACHE: dict[str, Blueprint] = {}


def blueprint_of(id: str, options: Mapping[str, Any], action_names: tuple[str, ...]) -> Blueprint:
    """Return the blueprint of `id` (of gymnasium's registry, or 'file.py:Class') with `options`.

    The first call creates the environment once, to read its spaces, and closes it. Raises `UserError` if that fails or
    if the actions have no JSON form.
    """
    key = json.dumps([id, options, action_names], sort_keys=True, default=repr)
    if key not in _CACHE:
        make = partial(_maker(id), **options)
        observation_space, action_space = _spaces_of(make, id)
        arguments = ActionArguments(action_space, action_names)
        _CACHE[key] = Blueprint(make, observation_space, action_space, arguments, Act(arguments))
    return _CACHE[key]


def _maker(id: str) -> Callable[..., Any]:
    try:
        import gymnasium
    except ImportError as error:
        raise UserError("This environment needs gymnasium: pip install 'agentloop[gym]'.") from error
    if ":" in id and not _REGISTERED.match(id):
        found = load_object(id, "gymnasium environment")
        if not callable(found):
            raise UserError(
                f"{id!r} must be a gymnasium.Env class or a function that returns one, got {type(found).__name__}."
            )
        return found
    return partial(gymnasium.make, id)


def _spaces_of(make: Callable[[], Any], id: str) -> tuple[Any, Any]:
    import gymnasium

    try:
        env = make()
    except Exception as error:  # the boundary: third-party code
        known = nearest(id, gymnasium.registry) if isinstance(error, gymnasium.error.UnregisteredEnv) else ""
        raise UserError(
            f"The gymnasium environment {id!r} cannot be created: {type(error).__name__}: {error}{known}"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{id!r} must create a gymnasium.Env, got {type(env).__name__}.")
    spaces = env.observation_space, env.action_space
    env.close()
    return spaces
