"""Named functions with options: what advantages, losses and corrections have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from agentloop.errors import UserError, nearest
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import Config

T = TypeVar("T")
C = TypeVar("C", bound=Config)


class NoOptions(Config):
    """There are none."""


class Registry(Generic[T]):
    """Entries by name. `what` they are, and the `key` of the config that names one, are for the errors."""

    def __init__(self, what: str, key: str) -> None:
        self._what = what
        self._key = key
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Raises `ValueError` where the name is taken."""
        if name in self._entries:
            raise ValueError(f"the {self._what} {name!r} is registered already")
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """Of a spec 'file.py:name' or 'package.module:name' the file is loaded first, and registers the name. Raises
        `UserError` with the nearest name."""
        if ":" in name:
            load_object(name, self._what)
            name = name.rpartition(":")[2]
        if name not in self._entries:
            raise UserError(
                f"There is no {self._what} {name!r}.{nearest(name, self)} Set {self._key} to one of: {', '.join(self)}."
            )
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))


def parse_options(schema: type[C], options: Mapping[str, Any], *, of: str, key: str) -> C:
    """`options` checked against their class; `of` ("loss 'ppo'") and the config's `key` are for the `UserError`."""
    known = schema.model_fields
    if unknown := [name for name in options if name not in known]:
        raise UserError(
            f"The {of} has no option {unknown[0]!r}.{nearest(unknown[0], known)} "
            f"{key} may set: {', '.join(known) or 'nothing'}."
        )
    try:
        return schema(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *map(str, first["loc"])])
        raise UserError(f"{where} of the {of} cannot be used: {first['msg']}.") from error
