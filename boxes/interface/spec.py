"""`BoxSpec`: the image of a box and the resources it may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from agentloop.errors import UserError

_LEAST = {"cpus": 0.01, "memory_mb": 6, "storage_mb": 1, "processes": 3}
"""With less, the kernel or an engine refuses to start the box, or no command can run in it."""


def check_limits(**limits: float | None) -> None:
    """Raise `UserError` for limits with which no box works. None sets no limit."""
    for name, limit in limits.items():
        if limit is not None and not _LEAST[name] <= limit < math.inf:
            raise UserError(
                f"{name} of a box is {limit}: set a finite number of at least {_LEAST[name]}, or leave it out."
            )


@dataclass(slots=True, frozen=True, kw_only=True)
class Image:
    """The file system that a box starts with. Raises `UserError` unless exactly one of the fields is set."""

    reference: str | None = None
    """Name of an image of a registry or an engine, such as `python:3.12-slim`."""
    dockerfile: Path | None = None
    """Folder that holds a Dockerfile and is its build context."""
    tarball: Path | None = None
    """A root file system as a tar archive, compressed or not."""
    tree: Path | None = None
    """A directory with a root file system. Boxes see it and never write to it."""

    def __post_init__(self) -> None:
        kinds = [each.name for each in fields(self)]
        given = [name for name in kinds if getattr(self, name)]
        if len(given) != 1:
            raise UserError(
                f"The image of a box sets {' and '.join(given) or 'nothing'}: set exactly one of {', '.join(kinds)}."
            )


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
    """One box. None leaves the choice to the image or the provider. Raises `UserError` for limits that are too low."""

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
    """Processes and threads that may be alive at once, with the two that run a command."""

    def __post_init__(self) -> None:
        check_limits(cpus=self.cpus, memory_mb=self.memory_mb, storage_mb=self.storage_mb, processes=self.processes)
