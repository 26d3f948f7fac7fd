"""Sandboxes: run untrusted code. `create` gives the isolation level that is asked for, or says why it cannot."""

from __future__ import annotations

from typing import Any

from agentloop.errors import UserError, nearest
from agentloop.sandboxes.auto import Auto
from agentloop.sandboxes.base import (
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
    """A sandbox of an isolation level (`levels`), not started yet; `options` are those of its class.

    `auto` becomes the strongest level that works here when it starts; nothing weaker is ever put in place of a level
    that was asked for by name. Raises `UserError` for an unknown level or option.
    """
    if level == "auto":
        return Auto(**options)
    if level not in LEVELS:
        names = ["auto", *LEVELS]
        raise UserError(f"There is no sandbox level {level!r}.{nearest(level, names)} Levels: {', '.join(names)}.")
    return LEVELS.get(level).create(options)
