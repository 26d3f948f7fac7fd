"""Sandboxes: run untrusted code. `create` gives the isolation level that is asked for, or says why it cannot."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from agentloop.errors import UserError, nearest
from agentloop.sandboxes.base import Execution, ExecutionResult, Sandbox

__all__ = ["DEFAULT_LEVEL", "Execution", "ExecutionResult", "Sandbox", "create"]

DEFAULT_LEVEL = "bubblewrap"

_LEVELS = {"bubblewrap": ("agentloop.sandboxes.bubblewrap", "Bubblewrap")}


def create(level: str = DEFAULT_LEVEL, **options: Any) -> Sandbox:
    """A sandbox of an isolation level, not started yet; `options` are those of its class.

    Raises `UserError` for an unknown level or option. Nothing weaker is ever put in place of what was asked for.
    """
    if level not in _LEVELS:
        raise UserError(f"There is no sandbox level {level!r}.{nearest(level, _LEVELS)} Levels: {', '.join(_LEVELS)}.")
    module, name = _LEVELS[level]
    try:
        return getattr(import_module(module), name)(**options)
    except TypeError as error:
        raise UserError(f"The sandbox level {level!r} cannot be made with these options: {error}.") from error
