"""`BoxSpec`: the image of a box and the resources it may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentloop.errors import UserError


@dataclass(slots=True, frozen=True, kw_only=True)
class Image:
    """The file system that a box starts with: exactly one of the fields is set."""

    reference: str | None = None
    """Name of an image of a registry or an engine, such as `python:3.12-slim`."""
    dockerfile: Path | None = None
    """Folder that holds a Dockerfile and is its build context."""
    tarball: Path | None = None
    """A root file system as a tar archive, compressed or not."""
    tree: Path | None = None
    """A directory with a root file system. Boxes see it and never write to it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Network:
    """Network access of a box. Raises `UserError` for hosts without the mode allowlist, which alone reads them."""

    mode: Literal["none", "allowlist", "public"] = "none"
    hosts: tuple[str, ...] = ()
    """Hosts of an allowlist: names, `*.example.org` for all names below it, addresses, ranges such as 10.0.0.0/8."""

    def __post_init__(self) -> None:
        if self.hosts and self.mode != "allowlist":
            raise UserError(
                f"Only the network allowlist takes hosts, and this box has the network {self.mode} with hosts "
                f"{', '.join(self.hosts)}: choose allowlist, or leave the hosts out."
            )


@dataclass(slots=True, frozen=True, kw_only=True)
class BoxSpec:
    """One box. None leaves the choice to the image or the provider."""

    image: Image
    network: Network = field(default_factory=Network)
    workdir: str | None = None
    """Directory that commands start in, made if it is missing; None is the image's, else /."""
    user: str | None = None
    """User, or `user:group`, that commands run as; None is the image's, else root (of the box)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the image's."""
    cpus: float | None = None
    """CPUs that the box may use; 0.5 is half of one."""
    memory_mb: int | None = None
    storage_mb: int | None = None
    """MiB that the box may write."""
    processes: int = 1024
    """Processes and threads that may be alive at once."""
