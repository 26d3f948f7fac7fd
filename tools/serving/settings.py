"""`Settings`: what the daemon is started with."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentloop.errors import UserError
from agentloop.sandboxes.base import check_limits


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    """Raises `UserError` where the daemon cannot be started with it. The names are those of the command's options."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any that is free."""
    token: str | None = None
    """What requests must bear; needed where others than this machine can reach the daemon."""
    isolation: str = "auto"
    slots: int | None = None
    """Executions at once; None leaves it to the isolation level."""
    preload: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    disk_mb: int | None = None
    """MiB of each directory that code can write; None leaves it to the level."""
    level_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the isolation level, as its class has them (`image`, `max_processes`, ...)."""
    memory_mb: int = 1024
    """MiB of an execution that does not say how much."""
    max_memory_mb: int = 16384
    """MiB that an execution may ask for."""
    max_seconds: float = 3600.0
    """Of any time limit that a request sets."""
    max_sessions: int = 256
    max_body_mb: int = 64
    max_connections: int = 4096
    body_seconds: float = 120.0
    """In which a request must have arrived."""
    drain_seconds: float = 30.0
    """That running requests get when the daemon is told to end."""
    tools: tuple[str, ...] = ()
    """Tools to offer beside the registered ones that need no options: registered names, `package.module:name` or
    `path/to/file.py:name`, each with its options after it as a JSON object: `search={"source": "index"}`."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        bounds = ("memory_mb", "max_memory_mb", "max_seconds", "max_sessions", "max_body_mb")
        check_limits(self, *bounds, "max_connections", "body_seconds", "drain_seconds")
        if self.slots is not None and self.slots < 1:
            raise UserError(f"--slots must be at least 1, got {self.slots}.")
        if self.disk_mb is not None and self.disk_mb < 1:
            raise UserError(f"--disk-mb must be at least 1, got {self.disk_mb}.")
        if not 0 <= self.port < 65536:
            raise UserError(f"--port must be between 0 and 65535, got {self.port}.")
        if self.memory_mb > self.max_memory_mb:
            raise UserError(f"--memory-mb {self.memory_mb} is above --max-memory-mb {self.max_memory_mb}.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UserError("The token must be printable ASCII without spaces.")
        if self.token == "":
            raise UserError("The token is empty: give one of 16 characters or more, or none on a loopback address.")
        if self.token is None and not is_loopback(self.host):
            raise UserError(
                f"On {self.host} other machines can reach the daemon and run code: give a token by AGENTLOOP_TOKEN or "
                "--token, which requests then bear, or listen on 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
