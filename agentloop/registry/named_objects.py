"""Load objects that a config names: 'package.module:name', 'path/to/file.py:name', or an entry point of a package."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import sys
import threading
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from agentloop.errors import UserError, blaming, nearest, raised
from agentloop.registry.extras import extra_with

_log = logging.getLogger(__name__)
_LOADING = threading.RLock()
"""Held while a file is loaded, so that another thread does not get a module whose code still runs."""
_LOADED: dict[str, tuple[float, int]] = {}
"""Names of loaded files' modules -> when the file was written, and its size."""


def load_object(spec: str, what: str) -> Any:
    """Return the object that `spec` names; errors call it `what` ("reward", "tool", ...).

    Raises `UserError` if the module or file cannot be found or imported, or has no such attribute.
    """
    source, separator, attribute = spec.rpartition(":")
    if not separator or not source or not attribute:
        raise UserError(
            f"The {what} {spec!r} must be written as 'package.module:name' or 'path/to/file.py:name', "
            "with a colon before the name."
        )
    module = _load_file(Path(source), what) if source.endswith(".py") else _import(source, what)
    try:
        return getattr(module, attribute)
    except AttributeError:
        if module.__name__ == "__main__":
            raise UserError(
                f"The {what} {attribute!r} was defined in a notebook or a script, which this process cannot "
                f"import. Move it to a file and name it 'file.py:{attribute}', or resume where it is defined."
            ) from None
        public = [name for name in vars(module) if not name.startswith("_")]
        raise UserError(f"{source} has no {attribute!r} to use as {what}.{nearest(attribute, public)}") from None


def name_of(thing: Any) -> Any:
    """Return 'module:name' for a class, a function or a tool, and other values unchanged: the inverse of `load_object`.

    Raises `UserError` for an object that cannot be imported by its name, such as a lambda.
    """
    if isinstance(thing, str) or not callable(thing):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if name is None or getattr(sys.modules.get(str(module)), str(name), None) is not thing:
        raise UserError(
            f"{thing!r} cannot be named in a config. Define it with `class` or `def` at the top level of a module, a "
            "script or a notebook."
        )
    return f"{module}:{name}"


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, sorted by name, without importing any."""
    return {entry.name: entry for entry in _scan(group, tuple(sys.path))}


def registrations(group: str, name: str) -> list[EntryPoint]:
    """Return the entry points with this name; there are several if packages chose the same name."""
    return [entry for entry in _scan(group, tuple(sys.path)) if entry.name == name]


@lru_cache(maxsize=16)
def _scan(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Read the metadata of every package on the path; cached, because it takes about 20 ms."""
    return tuple(sorted(entry_points(group=group), key=lambda entry: entry.name))


def _import(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f"There is no module {error.name!r}, which the {what} {name!r} needs. Install its package, or name "
                "a file: 'path/to/file.py:name'."
            ) from error
        extra = extra_with(error.name or "")
        fix = f". Run: pip install 'agentloop[{extra}]'" if extra else ": install it."
        raise UserError(
            f"The module {name!r} of the {what} needs {error.name!r}, which is not installed{fix}"
        ) from error
    except (Exception, SystemExit) as error:
        raise UserError(f"The module {name!r}, which has the {what}, fails to import: {raised(error)}.") from error


def _load_file(path: Path, what: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UserError(f"There is no file {path} for the {what}: correct the path.")
    # One module per path: two specs of the same file share its state, and unpickling finds the module.
    name = f"agentloop_user_{path.stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}"
    with _LOADING:
        module = sys.modules.get(name)
        if module is None:
            _LOADED[name] = _written(path)
            return _run_file(path, name, what)
        if _LOADED.get(name, now := _written(path)) != now:
            _LOADED[name] = now
            _log.warning(
                "%s has changed since this process loaded it, and the old code is still used. Restart the process, or "
                "the notebook's kernel, to use the new code.",
                path,
            )
        return module


def _written(path: Path) -> tuple[float, int]:
    status = os.stat(path)
    return status.st_mtime, status.st_size


def _run_file(path: Path, name: str, what: str) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        with blaming(f"{path}, which has the {what}, fails to import"):
            module_spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    return module
