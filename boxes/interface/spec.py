"""`BoxSpec`: the image of a box and the resources it may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from agentloop.boxes.interface.hosts import normal_host
from agentloop.errors import UserError, nearest

NetworkMode = Literal["none", "allowlist", "public"]

_LEAST = {"cpus": 0.01, "memory_mb": 6, "storage_mb": 1, "processes": 3}
"""With less, the kernel or an engine refuses to start the box, or no command can run in it."""
_MOST = {"cpus": 65536, "memory_mb": 1 << 32, "storage_mb": 1 << 32, "processes": 1 << 22}
"""The kernel takes no more processes, and some larger values of the others are errors of the kernel, too."""


def check_limits(**limits: float | None) -> None:
    """Raise `UserError` for limits with which no box works. None sets no limit."""
    for name, limit in limits.items():
        if limit is not None and not _LEAST[name] <= limit < math.inf:
            raise UserError(
                f"{name} of a box is {limit}: set a finite number of at least {_LEAST[name]}, or leave it out."
            )
        if limit is not None and limit > _MOST[name]:
            raise UserError(f"{name} of a box is {limit:.16g}: set at most {_MOST[name]}, or leave it out.")


def check_variables(variables: Mapping[str, str]) -> None:
    """Raise `UserError` for environment variables that no program can get."""
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UserError(f"The variable {name!r} of a box is {value!r:.100}: make name and value strings.")
        if not name or "=" in name or "\0" in name + value:
            raise UserError(
                f"The variable {name!r} of a box cannot be set: use a name that is not empty and has no '=', and no "
                "NUL characters."
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
    """Network access of a box. Raises `UserError` for unknown modes, wrong hosts, and hosts without an allowlist."""

    mode: NetworkMode = "none"
    hosts: tuple[str, ...] = ()
    """Hosts of an allowlist: names, `*.example.org` for all names below it, addresses, ranges such as 10.0.0.0/8."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(NetworkMode):
            raise UserError(
                f"A box has no network {self.mode!r}.{nearest(str(self.mode), get_args(NetworkMode))} Use one of "
                f"{', '.join(get_args(NetworkMode))}."
            )
        if self.hosts and self.mode != "allowlist":
            raise UserError(
                f"Only the network allowlist takes hosts, and this box has the network {self.mode} with hosts "
                f"{', '.join(self.hosts)}: choose allowlist, or leave the hosts out."
            )
        for host in self.hosts:
            try:
                normal_host(host)
            except ValueError as error:
                raise UserError(f"A host of the network of a box cannot be used: {error}.") from error


@dataclass(slots=True, frozen=True, kw_only=True)
class BoxSpec:
    """A box. None leaves the choice to the image or the provider. Raises `UserError` for wrong limits or variables."""

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
        check_variables(self.env)
