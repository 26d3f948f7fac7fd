"""Environments by name: those that packages registered (entry-point group `agentloop.envs`), and your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentloop.envs.base import Env
from agentloop.errors import UserError
from agentloop.registry.options import check_call
from agentloop.registry.registry import Registry

GROUP = "agentloop.envs"

ENVS: Registry[Callable[..., Env]] = Registry("environment", "env.factory", group=GROUP)


def load_factory(spec: str, options: Mapping[str, Any] | None = None) -> Callable[..., Env]:
    """Return the class or function of a registered name, 'package.module:name' or 'path/to/file.py:name'.

    It is called as factory(row, toolset=..., reward=..., **options) for every episode. Raises `UserError` if it cannot
    be loaded or, with `options`, cannot be called this way.
    """
    factory = ENVS.get(spec)
    if not callable(factory):
        raise UserError(
            f"The environment {spec!r} is of type {type(factory).__name__}: name an Env class, or a function that "
            "makes one."
        )
    if options is not None:
        check_call(
            factory,
            options,
            {},
            of=f"environment {spec!r}",
            call="factory(row, toolset=..., reward=..., **options)",
            key="env.options",
            toolset=None,
            reward=None,
        )
    return factory
