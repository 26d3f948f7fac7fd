"""Find and create interpreters with the packages of environments.

`agentloop envs install NAME` creates a virtual environment below `envs_folder()`. An environment uses, in this order,
the interpreter of its option `python`, the installed one, and agentloop's own if it has the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from agentloop.envs.workers.packages import PACKAGES, Package
from agentloop.errors import UserError
from agentloop.process.atomic import replaced, write_text

_DONE = "agentloop-installed.txt"
"""Name of the file with the requirements, which is written after all of them are installed."""


def envs_folder() -> Path:
    """Return the folder of the virtual environments: AGENTLOOP_ENVS, or agentloop/envs in the user's data folder."""
    if own := os.environ.get("AGENTLOOP_ENVS"):
        return Path(own).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "agentloop" / "envs"


def installed(name: str) -> Path | None:
    """Return the interpreter that `install` created for an environment; None if there is none with these versions."""
    folder = envs_folder() / name
    done = folder / _DONE
    is_current = done.is_file() and done.read_text(encoding="utf-8").split() == list(PACKAGES[name].everything)
    return _python_of(folder) if is_current else None


@cache
def interpreter_of(name: str, python: str | None = None) -> str:
    """Return the interpreter of an environment: `python` if it is set. Raises `UserError` if there is none."""
    if python is not None:
        found = shutil.which(os.path.expanduser(python))
        if found is None:
            raise UserError(f"The option python of {name} is {python!r}, which is not a program: correct the path.")
        if name in PACKAGES:
            _check_has(name, found)
        return os.path.abspath(found)
    if name in PACKAGES:
        if (made := installed(name)) is not None:
            return str(made)
        if find_spec(PACKAGES[name].imports) is None:
            raise UserError(
                f"The environment {name} needs a package that is not installed. Run: agentloop envs install {name}. Or "
                "set the option python to an interpreter that has it."
            )
    return sys.executable


def _check_has(name: str, python: str) -> None:
    """Raise `UserError` unless an interpreter finds the package as its worker does, without importing it."""
    module = PACKAGES[name].imports
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-I", "-c", found], capture_output=True, check=False).returncode:
        raise UserError(
            f"The option python of {name} is {python!r}, which does not find the package {module}. Install it there, "
            f"or run agentloop envs install {name}, and leave the option out."
        )


def install(name: str, package: Package, *, python: str | None = None) -> Path:
    """Create the virtual environment of a package, and return its interpreter. Raises `UserError`.

    `python` is the interpreter that creates it; the default is the newest on PATH that the package was tested with. If
    the installation fails, an earlier one stays.
    """
    base = python or suitable_python(name, package)
    _check_version(name, package, base)
    folder = envs_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A virtual environment has its path in its scripts: the earlier one moves away, and not the new one to its place.
    old = replaced(folder)
    if old.exists() and not (folder / _DONE).exists():  # an installation was killed
        _move(old, folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        made = _fill(folder, name, package, base)
    except BaseException:
        if old.exists():
            _move(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
    interpreter_of.cache_clear()
    return made


def _fill(folder: Path, name: str, package: Package, base: str) -> Path:
    _run(f"{base} cannot create a virtual environment", base, "-m", "venv", "--upgrade-deps", str(folder))
    made = _python_of(folder)
    # The newest pip takes half as long as one that came with Python, and what is imported is compiled then.
    pip = (str(made), "-m", "pip", "install", "--quiet", "--no-compile")
    if package.requirements:
        _run(f"pip cannot install {name}", *pip, *package.requirements)
    if package.alone:
        _run(f"pip cannot install {name}", *pip, "--no-deps", *package.alone)
    _run(f"{package.imports} was installed but fails to import", str(made), "-c", f"import {package.imports}")
    write_text(folder / _DONE, "\n".join(package.everything) + "\n")
    return made


def _move(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)


def _check_version(name: str, package: Package, base: str) -> None:
    """Raise `UserError` if an interpreter does not work or is too old. A newer one than was tested may work."""
    shown = _run(f"{base} cannot create a virtual environment", base, "-c", "import sys; print(*sys.version_info[:2])")
    version = tuple(int(number) for number in shown.split())
    if version < package.oldest:
        raise UserError(
            f"{name} needs Python {_wanted(package)}, but {base} is Python {'.'.join(map(str, version))}: "
            "give --python another interpreter, or leave it out."
        )


def _wanted(package: Package) -> str:
    """Return the versions that the package was tested with, as in 3.12 or 3.13."""
    return " or ".join(f"3.{minor}" for minor in range(package.oldest[1], package.newest[1] + 1))


def suitable_python(name: str, package: Package) -> str:
    """Return an interpreter for a package: this one, or the newest on PATH or of pyenv. Raises `UserError`."""
    if package.oldest <= sys.version_info[:2] <= package.newest:
        return sys.executable
    versions = [(3, minor) for minor in range(package.newest[1], package.oldest[1] - 1, -1)]
    for version in versions:
        if found := _python_named("python{}.{}".format(*version)):
            return found
    raise UserError(
        f"{name} needs Python {_wanted(package)}, but this machine has none of them on PATH. "
        f"Install one, or give its path: agentloop envs install {name} --python PATH."
    )


def _python_named(name: str) -> str | None:
    """Return an interpreter such as python3.12, on PATH or of pyenv; None if none works."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    for found in (shutil.which(name), *map(str, sorted(of_pyenv.glob(f"*/bin/{name}")))):
        # A shim of pyenv is on PATH even if no such version is selected.
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return found
    return None


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def _run(problem: str, *command: str) -> str:
    """Return the output of a command. Raises `UserError` with its last lines if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise UserError(f"{problem}: {error}.") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise UserError(f"{problem}. Its last lines:\n" + "\n".join(lines))
    return done.stdout
