"""Recipes, each a config file, a folder with a config.yaml or a built-in name; and the folders of their runs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from agentloop.errors import UserError, nearest

if TYPE_CHECKING:
    from agentloop.config.run import RunConfig

_CONFIG = "config.yaml"
_RUNS = Path("runs")


def find_config(recipe: str) -> Path:
    """Return the config file of `recipe`. Raises `UserError` with the names of the built-in recipes."""
    path = Path(recipe).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return path
    if (path / _CONFIG).is_file():
        return path / _CONFIG
    recipes = built_in_recipes()
    if recipe in recipes:
        return recipes[recipe]
    raise UserError(
        f"There is no recipe {recipe!r}.{nearest(recipe, recipes)} Give the path of a YAML file or of a folder with a "
        f"{_CONFIG}, or the name of a built-in recipe: {', '.join(sorted(recipes)) or 'none is installed'}."
    )


def built_in_recipes() -> dict[str, Path]:
    """Return the config file of each recipe that comes with agentloop, by name."""
    package = importlib.util.find_spec("agentloop.recipes")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    return {path.parent.name: path for folder in folders for path in Path(folder).glob(f"*/{_CONFIG}")}


def complete_recipe(incomplete: str) -> list[str]:
    """Return the names of built-in recipes that begin so; a shell completes the paths of files itself."""
    return sorted(name for name in built_in_recipes() if name.startswith(incomplete))


def load_run_config(recipe: str, overrides: Sequence[str]) -> RunConfig:
    """Load the config of `recipe` with `key=value` overrides. Raises `UserError` if it is invalid."""
    from agentloop.config.loading import load_config
    from agentloop.config.run import RunConfig

    return load_config(RunConfig, find_config(recipe).resolve(), overrides)


def run_name(source: object) -> str:
    """Return the name of the runs of a recipe, and "run" for a config without a file."""
    if not isinstance(source, str | PathLike):
        return "run"
    config = find_config(fspath(source)).resolve()
    return config.parent.name if config.name == _CONFIG else config.stem


def new_folder(name: str, kind: str = "") -> Path:
    """Return a new folder below runs/, with the name of a run and the time. It is not created."""
    return _RUNS / f"{name}{kind}-{datetime.now():%Y%m%d-%H%M%S}"


def run_folders(name: str) -> list[Path]:
    """Return the folders that `new_folder` named for runs of that name, newest first."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    found = _RUNS.iterdir() if _RUNS.is_dir() else ()
    return sorted((path for path in found if pattern.fullmatch(path.name)), reverse=True)
