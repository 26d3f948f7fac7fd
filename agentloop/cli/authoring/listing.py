"""Tables of what is registered under a name."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentloop.errors import UserError
from agentloop.registry.registry import Registry, package_of
from agentloop.tools import docstrings


def print_registry(registry: Registry[Any], given: Collection[str]) -> None:
    """Print the name, options, package and description of each entry.

    `given` names the parameters that are not options. An entry that cannot be imported shows the reason instead.
    """
    table = Table("name", "options", "package", "description")
    packages = {name: package_of(entry) for name, entry in registry.entry_points().items()}
    for name in registry:
        try:
            found = registry.get(name)
            options = ", ".join(option for option in inspect.signature(found).parameters if option not in given)
            description = escape(" ".join(docstrings.split(found.__doc__)[0].partition("\n\n")[0].split()))
        except UserError as error:
            options, description = "", f"[red]{escape(str(error))}[/red]"
        table.add_row(name, options, packages.get(name, "agentloop"), description)
    Console().print(table)
