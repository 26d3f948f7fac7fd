"""Sandboxes run untrusted code. `create` makes a sandbox of the requested isolation level."""

from __future__ import annotations

from typing import Any

from agentloop.errors import UserError, nearest
from agentloop.sandboxes.interface.sandbox import (
    CellError,
    CellResult,
    Execution,
    ExecutionResult,
    Load,
    ProcessResult,
    Sandbox,
    SandboxBusyError,
    Session,
    SessionSettings,
)
from agentloop.sandboxes.levels.auto import Auto
from agentloop.sandboxes.levels.registry import LEVELS

__all__ = [
    "DEFAULT_LEVEL",
    "LEVELS",
    "CellError",
    "CellResult",
    "Execution",
    "ExecutionResult",
    "Load",
    "ProcessResult",
    "Sandbox",
    "SandboxBusyError",
    "Session",
    "SessionSettings",
    "create",
]

DEFAULT_LEVEL = "auto"


def create(level: str = DEFAULT_LEVEL, **options: Any) -> Sandbox:
    """Return a sandbox of an isolation level, not started yet; `options` are the arguments of its class.

    When it starts, `auto` becomes the strongest level that works on this machine. A level requested by name is never
    replaced by a weaker one. Raises `UserError` for an unknown level or option.
    """
    if level == "auto":
        return Auto(**options)
    if level not in LEVELS:
        names = ["auto", *LEVELS]
        raise UserError(f"Unknown sandbox level {level!r}.{nearest(level, names)} Levels: {', '.join(names)}.")
    return LEVELS.get(level).create(options)
