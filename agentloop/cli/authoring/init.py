"""The command `agentloop init`: create a package from the templates next to this file."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

import typer

from agentloop.envs.registry import ENVS
from agentloop.envs.rewards.loading import REWARDS
from agentloop.errors import UserError
from agentloop.registry.registry import Registry
from agentloop.tools.registry import TOOLS

_TEMPLATES = Path(__file__).with_name("templates")
_REGISTRIES: dict[str, tuple[str, Registry[Any]]] = {
    "env": ("an environment", ENVS),
    "tool": ("a tool", TOOLS),
    "recipe": ("a reward", REWARDS),
}
"""Kind of a package -> what it registers, and the registry."""


def init(
    kind: Annotated[Literal["env", "tool", "recipe"], typer.Argument(help="Content of the package.")],
    name: Annotated[str, typer.Argument(help="Name of the package and of its folder, such as number-game.")],
    into: Annotated[Path, typer.Option(help="Folder in which the folder of the package is created.")] = Path(),
) -> None:
    """Create a working package with an environment, a tool or a recipe as a starting point for your own."""
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?", name) or keyword.iskeyword(package):
        raise UserError(f"{name!r} is not a valid package name: use letters, digits and hyphens, such as number-game.")
    other = f"choose another name, such as my-{name}."
    if package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        raise UserError(f"a module {package!r} exists already: {other}")
    what, registry = _REGISTRIES[kind]
    if package in registry:
        raise UserError(f"{what} {package!r} exists already: {other}")
    if file := next((path for path in (into, *into.parents) if path.exists() and not path.is_dir()), None):
        raise UserError(f"--into is {into}, but {file} is not a folder: name a folder.")
    folder = into / name
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another name, or remove it.")
    templates = sorted((_TEMPLATES / kind).rglob("*.template"))
    class_name = "".join(word.capitalize() for word in package.split("_"))
    if keyword.iskeyword(class_name) or class_name in _imported_names(templates):
        raise UserError(f"the class of the package cannot have the name {class_name!r}, which is in use: {other}")
    for template in templates:
        path = folder / str(template.relative_to(_TEMPLATES / kind)).replace("PACKAGE", package)
        path = path.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Template(template.read_text(encoding="utf-8"))
        path.write_text(text.substitute(name=name, package=package, class_name=class_name), encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo(f"Next: cd {shlex.quote(str(folder))} && pip install -e '.[test]' && pytest")


def _imported_names(templates: list[Path]) -> set[str]:
    """Return the names that templates with a class import: a class of the same name would hide one."""
    texts = [template.read_text(encoding="utf-8") for template in templates]
    with_class = "\n".join(text for text in texts if "$class_name" in text)
    imports = re.findall(r"^from .+ import (.+)$", with_class, re.MULTILINE)
    return {name for names in imports for name in names.split(", ")}
