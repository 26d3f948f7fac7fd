"""`Registry`: entries that a config selects by name, such as engines, rewards, tools, advantages and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import Any, Generic, Literal, TypeVar, cast

from agentloop.errors import UserError, nearest, raised
from agentloop.registry.extras import naming_extras
from agentloop.registry.named_objects import load_object, registered, registrations

T = TypeVar("T")

Own = Literal["object", "registration", "none"]
"""How users add their own entry, written 'file.py:name' or 'package.module:name'.

object: the spec names the object itself. registration: importing the file registers the object under that name. none:
users cannot add entries.
"""


class Registry(Generic[T]):
    """Entries by name, in the order in which they were added; entry points come last.

    An entry is an object, or a string 'module:attribute' that is imported on first use.
    """

    def __init__(
        self,
        kind: str,
        key: str,
        entries: Mapping[str, T | str] | None = None,
        *,
        own: Own = "object",
        group: str | None = None,
    ) -> None:
        """Create a registry. Errors name `kind` ("reward") and the config's `key`; `group` is an entry-point group."""
        self._kind = kind
        self._key = key
        self._entries: dict[str, T | str] = dict(entries or {})
        self._own = own
        self._group = group
        self._unoffered: set[str] = set()

    def add(self, name: str, entry: T | str, *, offered: bool = True) -> None:
        """Register an entry. Raises `ValueError` if the name is taken.

        Errors do not suggest entries that are not `offered`; these are for code, not for configs.
        """
        if name in self._entries:
            raise ValueError(f"the {self._kind} {name!r} is already registered: choose another name")
        self._entries[name] = entry
        if not offered:
            self._unoffered.add(name)

    def get(self, name: str) -> T:
        """Return the object with this name or spec. Raises `UserError` if it is unknown or fails to import."""
        self.check(name)
        if ":" in name:
            found = load_object(name, self._kind)
            if self._own == "object":
                return cast(T, found)
            name = name.rpartition(":")[2]
            self.check(name)
        self._check_unique(name)
        if name not in self._entries:
            return cast(T, _load_entry_point(self.entry_points()[name], self._kind))
        entry = self._entries[name]
        return cast(T, load_object(entry, self._kind) if isinstance(entry, str) else entry)

    def check(self, name: str) -> str:
        """Return `name` if it is known, without importing anything. Raises `UserError` with the nearest name."""
        is_own = ":" in name and self._own != "none"
        if not is_own and name not in self:
            own = "" if self._own == "none" else ", or your own: 'file.py:name' or 'package.module:name'"
            offered = sorted(set(self) - self._unoffered)
            raise UserError(
                f"There is no {self._kind} {name!r}.{nearest(name, offered)} Set {self._key} to one of: "
                f"{', '.join(offered) or 'none are registered'}{own}."
            )
        return name

    def _check_unique(self, name: str) -> None:
        """Raise `UserError` if packages use the name for different objects: one would hide the other in silence."""
        found = registrations(self._group, name) if self._group is not None else []
        objects = {entry.value: package_of(entry) for entry in found}
        if name in self._entries:
            entry = self._entries[name]
            objects[entry if isinstance(entry, str) else name] = "agentloop"
        if len(objects) > 1:
            packages = ", ".join(f"{package} ({value})" for value, package in objects.items())
            raise UserError(
                f"Several packages register the {self._kind} {name!r}: {packages}. Rename it in your package, "
                f"uninstall a package that you do not need, or set {self._key} to 'package.module:name'."
            )

    def entry_points(self) -> dict[str, EntryPoint]:
        """Return the entry points that installed packages registered, by name."""
        return registered(self._group) if self._group is not None else {}

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.entry_points()

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from (name for name in self.entry_points() if name not in self._entries)


def registering(
    registry: Registry[T], name: str, make: Callable[[Any], T], *, offered: bool = True
) -> Callable[[Any], Any]:
    """Return a decorator that registers `make(function)` under `name` and returns the function unchanged."""

    def add(function: Any) -> Any:
        registry.add(name, make(function), offered=offered)
        return function

    return add


def package_of(entry: EntryPoint) -> str:
    """Return the distribution that registered an entry point."""
    return entry.dist.name if entry.dist is not None else "unknown"


def _load_entry_point(entry: EntryPoint, kind: str) -> Any:
    try:
        with naming_extras():
            return entry.load()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        raise UserError(
            f"The {kind} {entry.name!r} of the package {package_of(entry)!r} fails to import: {raised(error)}. Update "
            "or remove the package."
        ) from error
