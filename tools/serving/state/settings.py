"""`Settings`: the options of the daemon."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentloop.errors import UserError
from agentloop.sandboxes.interface.sandbox import check_limits, check_memory


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    """The options of `agentloop tools serve`, with the same names. Raises `UserError` for an invalid combination."""

    host: str = "127.0.0.1"
    port: int = 8080
    """Port; 0 takes any free one."""
    token: str | None = None
    """Token that requests must carry; required if other machines can reach the daemon."""
    isolation: str = "auto"
    slots: int | None = None
    """Executions at once; None is the default of the isolation level."""
    preload: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    disk_mb: int | None = None
    """MiB of each writable directory of an execution; None is the default of the isolation level."""
    level_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the isolation level, the arguments of its class (`image`, `max_processes`, ...)."""
    memory_mb: int = 1024
    """MiB of an execution that does not specify its memory."""
    max_memory_mb: int = 16384
    """Largest memory of an execution, in MiB."""
    max_seconds: float = 3600.0
    """Largest time limit of a request, in seconds."""
    max_sessions: int = 256
    max_body_mb: int = 64
    max_connections: int = 4096
    body_seconds: float = 120.0
    """Seconds within which a request must arrive completely."""
    drain_seconds: float = 30.0
    """Seconds that running requests have to finish when the daemon stops."""
    boxes: str | None = None
    """Provider of boxes to serve; None serves no boxes."""
    box_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the provider, the arguments of its class."""
    max_boxes: int = 64
    box_network: Literal["none", "public"] = "none"
    """What boxes may ask for: public allows lists of hosts, all hosts, and ports that lead to addresses."""
    max_image_mb: int = 16384
    """MiB of all images that clients send."""
    tools: tuple[str, ...] = ()
    """Tools to offer besides the registered ones that need no options and reach nothing of this host.

    Each is a registered name, `package.module:name` or `path/to/file.py:name`, optionally followed by options as JSON:
    `search={"source": "index"}`."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        bounds = ("memory_mb", "max_memory_mb", "max_seconds", "max_sessions", "max_body_mb")
        check_limits(self, *bounds, "max_connections", "body_seconds", "drain_seconds", "max_boxes", "max_image_mb")
        check_memory(self.memory_mb)
        if self.slots is not None and self.slots < 1:
            raise UserError(f"--slots must be at least 1, got {self.slots}.")
        if self.disk_mb is not None and self.disk_mb < 1:
            raise UserError(f"--disk-mb must be at least 1, got {self.disk_mb}.")
        if not 0 <= self.port < 65536:
            raise UserError(f"--port must be between 0 and 65535, got {self.port}.")
        if self.memory_mb > self.max_memory_mb:
            raise UserError(f"--memory-mb {self.memory_mb} is above --max-memory-mb {self.max_memory_mb}.")
        if self.boxes is None and (self.box_options or self.box_network != "none"):
            raise UserError("--box-option and --box-network need --boxes: add --boxes rootfs, docker or podman.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UserError("The token must be printable ASCII without spaces.")
        if self.token == "":
            raise UserError("The token is empty: use 16 characters or more, or no token on a loopback address.")
        if self.token is None and not is_loopback(self.host):
            raise UserError(
                f"On {self.host} other machines can reach the daemon and run code: set a token with AGENTLOOP_TOKEN or "
                "--token, which requests must then carry, or listen on 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
