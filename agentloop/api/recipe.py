"""Find recipes (a config file, a folder of config files, or a built-in name) and the folders of their runs.

A recipe's `config.yaml` is for `agentloop train`, its `sft.yaml` for `agentloop sft` and its `dpo.yaml` for `agentloop
dpo`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, count
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentloop.errors import UserError, nearest

if TYPE_CHECKING:
    from agentloop.config.fine_tuning import FineTuningConfig
    from agentloop.config.run import RunConfig

Method = Literal["sft", "dpo"]
"""Method of training on given answers; also the name of its loss."""

_CONFIG = "config.yaml"
_RUNS = Path("runs")


def find_config(recipe: str, name: str = _CONFIG) -> Path:
    """Return the config file of `recipe`, in a folder the file `name`. Raises `UserError` that lists known recipes."""
    path = Path(recipe).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return path if path.exists() else _in_package(path) or path
    if (path / name).is_file():
        return path / name
    if (path / _CONFIG).is_file() and (path / "checkpoints").is_dir():
        return path / _CONFIG  # the folder of a run
    recipes = built_in_recipes(name)
    if recipe in recipes:
        return recipes[recipe]
    raise UserError(
        f"There is no recipe {recipe!r}.{nearest(recipe, recipes)} Pass the path of a YAML file, a folder with a "
        f"{name}, or the name of a built-in recipe: {', '.join(sorted(recipes)) or 'none has one'}."
    )


def built_in_recipes(name: str = _CONFIG) -> dict[str, Path]:
    """Return recipe name -> file `name`, for each built-in recipe that has this file."""
    package = importlib.util.find_spec("agentloop.recipes")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    return {path.parent.name: path for folder in folders for path in Path(folder).glob(f"*/{name}")}


def _in_package(path: Path) -> Path | None:
    """Return the installed file of a path such as recipes/tiny/sft.yaml, which exists in a checkout only."""
    match path.parts:
        case ("recipes", recipe, file) if recipe in (recipes := built_in_recipes()):
            found = recipes[recipe].with_name(file)
            return found if found.is_file() else None
    return None


def complete_recipe(incomplete: str) -> list[str]:
    """Return the names of built-in recipes that begin with `incomplete`; the shell itself completes paths."""
    return sorted(name for name in built_in_recipes() if name.startswith(incomplete))


def load_run_config(recipe: str, overrides: Sequence[str]) -> RunConfig:
    """Load the config of `recipe` with `key=value` overrides. Raises `UserError` if it is invalid."""
    from agentloop.config.loading import load_config
    from agentloop.config.run import RunConfig

    file = find_config(recipe)
    return load_config(RunConfig, file.resolve(), [*_where_it_lies(file), *overrides])


def load_fine_tuning_config(recipe: str, overrides: Sequence[str], method: Method) -> FineTuningConfig:
    """Load the config of `recipe` for a run on given answers. Raises `UserError` if it is invalid."""
    from agentloop.config.fine_tuning import FineTuningConfig
    from agentloop.config.loading import load_config

    file = find_config(recipe, f"{method}.yaml")
    given = [*([] if method == "sft" else [f"learner.loss={method}"]), *_where_it_lies(file), *overrides]
    return load_config(FineTuningConfig, file.resolve(), given)


def own_folder(file: Path) -> Path | None:
    """Return the folder of the run that wrote a config file; None for other files.

    The file also stores run.folder, but relative to the folder in which the run was started, and a run may have moved.
    """
    from agentloop.trainer.run.lock import LOCK

    return file.parent if file.name == _CONFIG and (file.parent / LOCK).is_file() else None


def _where_it_lies(file: Path) -> list[str]:
    folder = own_folder(file)
    return [] if folder is None else [f"run.folder={json.dumps(str(folder))}"]


def run_name(source: object, method: Method | None = None) -> str:
    """Return the name of the runs of a recipe; "run" for a config without a file."""
    if not isinstance(source, str | PathLike):
        return "run" if method is None else method
    name = _CONFIG if method is None else f"{method}.yaml"
    config = find_config(fspath(source), name).resolve()
    if config.name not in (_CONFIG, name):
        return config.stem
    return config.parent.name if method is None else f"{config.parent.name}-{method}"


def new_folder(name: str, kind: str = "") -> Path:
    """Return the path of a new folder below runs/, made of the name of a run and the time, without creating it."""
    first = _RUNS / f"{name}{kind}-{datetime.now():%Y%m%d-%H%M%S}"
    further = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(folder for folder in chain([first], further) if not os.path.lexists(folder))


@contextmanager
def claimed_folder(name: str, kind: str = "") -> Iterator[Path]:
    """Create a new folder as `new_folder` names it, which no other process gets, and remove it if it stays empty.

    Does not create it if that is impossible: the run then says why.
    """
    with suppress(OSError):
        _RUNS.mkdir(exist_ok=True)
    while True:
        folder = new_folder(name, kind)
        try:
            folder.mkdir()
        except FileExistsError:  # another process was faster
            continue
        except OSError:
            pass
        break
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def run_folders(name: str) -> list[Path]:
    """Return the folders that `new_folder` named for runs with this name, newest first."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}(-\d+)?")
    found = _RUNS.iterdir() if _RUNS.is_dir() else ()
    return sorted((path for path in found if pattern.fullmatch(path.name)), reverse=True)
