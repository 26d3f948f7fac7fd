"""Print lists of registered entries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentloop.errors import UserError
from agentloop.registry.registry import Registry, package_of
from agentloop.tools import docstrings

_OWN = "agentloop"
_COLLECTS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(slots=True, frozen=True)
class Entry:
    """One registered name."""

    name: str
    package: str
    description: str = ""
    details: Sequence[str] = ()
    """Further lines, such as its options."""
    error: str = ""
    """Why it cannot be used."""

    def lines(self) -> list[str]:
        """Return the description and details of the entry."""
        package = [f"package: {self.package}"] if self.package != _OWN else []
        return [self.error or self.description, *self.details, *package]


def print_entries(entries: Iterable[Entry]) -> None:
    """Print each name with its description and details; in a pipe, as one line with tabs."""
    console = Console()
    if not console.is_terminal:
        for entry in entries:
            print("\t".join([entry.name, *entry.lines()]))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in entries:
        first, *others = entry.lines()
        text = Text(first, "red" if entry.error else "")
        table.add_row(entry.name, Text("\n").join([text, *(Text(line, "dim") for line in others)]))
    console.print(table)


def print_registry(registry: Registry[Any], load: Callable[[str], Any], given: Collection[str]) -> None:
    """Print the name, description and options of each entry.

    `load` imports and checks the entry of a name; if it raises `UserError`, the reason is printed instead. `given`
    names the parameters that are not options.
    """
    packages = {name: package_of(entry) for name, entry in registry.entry_points().items()}
    print_entries(_entry(load, name, packages.get(name, _OWN), given) for name in registry)


def _entry(load: Callable[[str], Any], name: str, package: str, given: Collection[str]) -> Entry:
    try:
        found = load(name)
    except UserError as error:
        return Entry(name, package, error=str(error))
    description = " ".join(docstrings.split(found.__doc__)[0].partition("\n\n")[0].split())
    parameters = inspect.signature(found).parameters.values()
    options = [each.name for each in parameters if each.name not in given and each.kind not in _COLLECTS]
    return Entry(name, package, description, [f"options: {', '.join(options)}"] if options else [])
