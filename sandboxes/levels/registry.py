"""The isolation levels: the protection and the requirements of each, and its creation from options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import check_options
from agentloop.registry.registry import Registry
from agentloop.sandboxes.interface.sandbox import Sandbox


@dataclass(slots=True, frozen=True)
class Level:
    """An isolation level, described without importing it."""

    name: str
    protects: str
    """Protection against the code, in one line."""
    needs: str
    """Requirements on the machine, in one line."""
    target: str
    """The class of the level as 'module:Class'; the module is in this folder."""

    def options(self) -> tuple[str, ...]:
        """Return the names of the options that its class takes."""
        return tuple(inspect.signature(self._class()).parameters)

    def create(self, options: Mapping[str, Any]) -> Sandbox:
        """Make a sandbox. Raises `UserError` for an unknown option or an invalid value."""
        check_options(options, sorted(self.options()), of=f"sandbox level {self.name!r}")
        types = get_type_hints(self._class().__init__)
        for name, value in options.items():
            try:
                TypeAdapter(types[name]).validate_python(value)
            except ValidationError as error:
                problem = error.errors()[0]["msg"]
                raise UserError(
                    f"The option {name!r} of the sandbox level {self.name!r} is {value!r}: {problem}."
                ) from error
        sandbox: Sandbox = self._class()(**options)
        return sandbox

    def _class(self) -> Any:
        return load_object(f"agentloop.sandboxes.levels.{self.target}", "sandbox level")


_HIDDEN = "files, processes, network and environment of the machine are hidden"
_ALL = (
    Level(
        "slots",
        f"{_HIDDEN}; memory, processes and disk are limited together; the kernel is shared, with filtered system calls",
        "Linux 5.14; root or user namespaces (and permission to make cgroups, to limit memory in total)",
        "slots:Slots",
    ),
    Level(
        "bubblewrap",
        f"{_HIDDEN}; memory is limited for each process; the kernel is shared, with filtered system calls",
        "the program bwrap 0.8; user namespaces",
        "bubblewrap:Bubblewrap",
    ),
    Level(
        "docker",
        f"{_HIDDEN}; memory, processes, processor and disk are limited together; with gVisor (runsc) its own kernel",
        "a docker engine on this machine that this user may use; an image with python3",
        "docker:Docker",
    ),
    Level(
        "landlock",
        "files, sockets and processes of the machine are visible but cannot be used; disk is not limited",
        "Linux 6.12 with Landlock; no privilege",
        "landlock:Landlock",
    ),
    Level(
        "none",
        "nothing: the code can do what this user can; for development with trusted code",
        "nothing; it must be requested by name",
        "none:NoIsolation",
    ),
)
"""All levels. The fast ones come first, and the strongest of these leads."""
LEVELS: Registry[Level] = Registry("sandbox level", "the level", {level.name: level for level in _ALL}, own="none")
AUTOMATIC = tuple(level for level in _ALL if level.name != "none")
"""Levels that `auto` tries, in this order."""
