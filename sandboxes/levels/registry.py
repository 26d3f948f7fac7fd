"""The isolation levels: what each protects against, what it needs, and how it is made from options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentloop.errors import UserError, nearest
from agentloop.sandboxes.base import Sandbox


@dataclass(slots=True, frozen=True)
class Level:
    name: str
    protects: str
    """What the code cannot do, in a line."""
    needs: str
    """What the machine must have, in a line."""
    module: str
    kind: str

    def options(self) -> tuple[str, ...]:
        """The names of what it can be made with."""
        return tuple(inspect.signature(self._class()).parameters)

    def create(self, options: Mapping[str, Any]) -> Sandbox:
        """Raises `UserError` for an option that is unknown or cannot be used."""
        check_options(options, self.options(), f"The sandbox level {self.name!r}")
        sandbox: Sandbox = self._class()(**options)
        return sandbox

    def _class(self) -> Any:
        return getattr(import_module(f"agentloop.sandboxes.levels.{self.module}"), self.kind)


_HIDDEN = "files, processes, network and environment of the machine are out of sight"
_ALL = (
    Level(
        "slots",
        f"{_HIDDEN}; memory, processes and disk are limited together; the kernel is shared, behind a filter of calls",
        "Linux 5.14; root or user namespaces (memory is limited together where it may make cgroups)",
        "slots",
        "Slots",
    ),
    Level(
        "bubblewrap",
        f"{_HIDDEN}; memory is limited for each process; the kernel is shared, behind a filter of calls",
        "the program bwrap 0.8; user namespaces",
        "bubblewrap",
        "Bubblewrap",
    ),
    Level(
        "docker",
        f"{_HIDDEN}; memory, processes, processor and disk are limited together; with gVisor (runsc) its own kernel",
        "a docker engine on this machine that this user may use; an image with python3",
        "docker",
        "Docker",
    ),
    Level(
        "landlock",
        "files, sockets and processes of the machine cannot be used, but be seen to exist; disk is not limited",
        "Linux 6.12 with Landlock; no privilege",
        "landlock",
        "Landlock",
    ),
    Level(
        "none",
        "nothing: the code can do what this user can; for development on code that is trusted",
        "nothing; it has to be asked for by name",
        "none",
        "NoIsolation",
    ),
)
"""The strongest that is fast first."""
LEVELS = {level.name: level for level in _ALL}
AUTOMATIC = tuple(level for level in _ALL if level.name != "none")
"""What `auto` tries, in this order."""


def check_options(options: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises `UserError` for an option that is not known."""
    names = sorted(set(known))
    for name in options:
        if name not in names:
            raise UserError(f"{what} has no option {name!r}.{nearest(name, names)} It has: {', '.join(names)}.")
