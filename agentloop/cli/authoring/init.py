"""The command `agentloop init`: create a package from the templates next to this file."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from agentloop.errors import UserError

_TEMPLATES = Path(__file__).with_name("templates")


def init(
    kind: Annotated[Literal["env", "tool", "recipe"], typer.Argument(help="Content of the package.")],
    name: Annotated[str, typer.Argument(help="Name of the package and of its folder, such as number-game.")],
    into: Annotated[Path, typer.Option(help="Folder in which the folder of the package is created.")] = Path(),
) -> None:
    """Create a working package with an environment, a tool or a recipe as a starting point for your own."""
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or keyword.iskeyword(package):
        raise UserError(f"{name!r} is not a valid package name: use letters, digits and hyphens, such as number-game.")
    if package in sys.stdlib_module_names or package == "agentloop":
        raise UserError(f"a module {package!r} exists already: choose another name, such as my-{name}.")
    folder = into / name
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another name, or remove it.")
    class_name = "".join(word.capitalize() for word in package.split("_"))
    for template in sorted((_TEMPLATES / kind).rglob("*.template")):
        path = folder / str(template.relative_to(_TEMPLATES / kind)).replace("PACKAGE", package)
        path = path.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text(encoding="utf-8"))
        path.write_text(text.substitute(name=name, package=package, class_name=class_name), encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo(f"Next: cd {shlex.quote(str(folder))} && pip install -e '.[test]' && pytest")
