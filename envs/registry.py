"""Find environments: by the name that a package registered (entry point group `agentloop.envs`), or by their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

from agentloop.envs.base import Env
from agentloop.errors import UserError, nearest, raised
from agentloop.registry.named_objects import load_object, registered

GROUP = "agentloop.envs"


def available() -> dict[str, EntryPoint]:
    """The registered environments, by name; nothing of them is imported."""
    return registered(GROUP)


def load_factory(spec: str, options: Mapping[str, Any] | None = None) -> Callable[..., Env]:
    """The class or function that `spec` names: registered, `package.module:name`, or `path/to/file.py:name`.

    It is called as factory(row, toolset=..., reward=..., **options) for every episode. Raises `UserError`; where
    `options` are given, also if it cannot be called so.
    """
    factory = load_object(spec, "environment") if ":" in spec else _registered(spec)
    if not callable(factory):
        raise UserError(
            f"The environment {spec!r} must be an Env class or a function that makes one, got {type(factory).__name__}."
        )
    if options is not None:
        _check_call(factory, spec, options)
    return factory


def _check_call(factory: Callable[..., Env], spec: str, options: Mapping[str, Any]) -> None:
    try:
        inspect.signature(factory).bind({}, toolset=None, reward=None, **options)
    except TypeError as error:
        known = [name for name in inspect.signature(factory).parameters if name not in ("toolset", "reward")][1:]
        raise UserError(
            f"The environment {spec!r} cannot be made: {error}. It is called as factory(row, toolset=..., reward=..., "
            f"**options), and takes the options (env.options): {', '.join(known) or 'none'}."
        ) from error


def _registered(name: str) -> Callable[..., Env]:
    envs = available()
    if name not in envs:
        raise UserError(
            f"There is no environment {name!r}.{nearest(name, envs)} Registered: {', '.join(envs) or 'none'}. Your own "
            "is named by its place: 'package.module:name' or 'path/to/file.py:name'."
        )
    try:
        return envs[name].load()
    except Exception as error:  # the boundary: the package is somebody else's
        package = entry.dist.name if (entry := envs[name]).dist is not None else "unknown"
        raise UserError(
            f"The environment {name!r} of the package {package!r} fails to import: {raised(error)}. "
            "Update or remove the package."
        ) from error
