"""Requirements of a package's tests, with the current versions that pip chooses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from agentloop.envs.harbor.making.swe.packages.fetching import Package, pyproject
from agentloop.errors import UserError
from agentloop.process import owned_folders

_EXTRAS = ("test", "tests", "testing", "pytest")
_WIDER_EXTRAS = ("dev", "develop", "development")
"""Used if none of `_EXTRAS` exists."""
_FILES = ("*requirements*test*.txt", "*test*requirements*.txt", "requirements/test*.txt", "test*/requirements*.txt")
_NOT_FOR_TESTS = {
    "black",
    "build",
    "check-manifest",
    "codecov",
    "commitizen",
    "coverage",
    "coveralls",
    "flake8",
    "furo",
    "isort",
    "mypy",
    "nox",
    "pip",
    "pre-commit",
    "pylint",
    "pyre-check",
    "pyright",
    "python-semantic-release",
    "ruff",
    "sphinx",
    "sphinx-rtd-theme",
    "towncrier",
    "tox",
    "twine",
    "wheel",
}
_NOT_FOR_TESTS |= {
    "pytest-black",
    "pytest-checkdocs",
    "pytest-cov",
    "pytest-enabler",
    "pytest-flake8",
    "pytest-mypy",
    "pytest-randomly",
    "pytest-ruff",
    "pytest-sugar",
    "pytest-xdist",
}
"""Developers' tools, whose options `pytest` here does not receive."""
_SECONDS = 600.0
_SHOWN_LINES = 6


def requirements_of(package: Package, version: str) -> list[str]:
    """Return what a package and its tests require with a version of Python, by its metadata and its files."""
    folder = package.folder
    found = [*_of_metadata(folder), *_of_setuptools(folder), *_of_project(folder), *_of_files(folder)]
    needed = set()
    for text, extra in found:
        requirement = _parsed(text)
        if requirement is not None and _is_useful(requirement, package.name) and _applies(requirement, extra, version):
            requirement.marker = None
            needed.add(str(requirement))
    return sorted(needed)


def pinned(requirements: Sequence[str], version: str, *, without: str) -> list[str]:
    """Return NAME==VERSION of all packages except `without` that pip would install for a version of Python.

    Only wheels are used, so no code of a package runs. Raises `UserError` if pip finds no matching versions.
    """
    if not requirements:
        return []
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = sys.executable if version == own else shutil.which(f"python{version}")
    if python is None:
        raise UserError(f"There is no python{version} on this machine: install it, or choose another with --python.")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    with owned_folders.temporary("agentloop-pins-") as made:
        report = made / "report.json"
        done = subprocess.run(
            [*command, "--report", str(report), *requirements], capture_output=True, text=True, timeout=_SECONDS
        )
        if done.returncode != 0:
            lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:])
            raise UserError(
                "The requirements of the tests cannot be installed. Omit a package with --without, or add one with "
                f"--requires. pip says:\n{lines}"
            )
        chosen = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    others = [each for each in chosen if canonicalize_name(each["name"]) != canonicalize_name(without)]
    return sorted(f"{canonicalize_name(each['name'])}=={each['version']}" for each in others)


def _of_metadata(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield requirements, each with an extra that may need it."""
    if (info := folder / "PKG-INFO").is_file():
        headers = HeaderParser().parsestr(info.read_text(encoding="utf-8", errors="replace"))
        for text in headers.get_all("Requires-Dist") or []:
            yield text, ""
            for extra in _chosen(headers.get_all("Provides-Extra") or []):
                yield text, extra


def _of_setuptools(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield requirements as older versions of setuptools wrote them, outside PKG-INFO."""
    for path in sorted((*folder.glob("*.egg-info/requires.txt"), *folder.glob("src/*.egg-info/requires.txt"))):
        sections: dict[str, list[str]] = {"": []}
        lines = sections[""]
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("["):
                lines = sections.setdefault(line.strip("[]"), [])
            else:
                lines.append(line)
        chosen = ["", *_chosen([each.partition(":")[0] for each in sections])]
        for section, texts in sections.items():
            extra, _, marker = section.partition(":")
            for text in texts if extra in chosen else ():
                yield (f"{text}; {marker}" if marker else text), ""


def _of_project(folder: Path) -> Iterator[tuple[str, str]]:
    table = pyproject(folder)
    project = table.get("project", {})
    optional, groups = project.get("optional-dependencies", {}), table.get("dependency-groups", {})
    yield from ((text, "") for text in project.get("dependencies", []))
    yield from ((text, "") for extra in _chosen(optional) for text in optional[extra])
    yield from ((text, "") for group in _chosen(groups) for text in _group(groups, group, set()))


def _group(groups: Mapping[str, Any], name: str, seen: set[str]) -> Iterator[str]:
    """Yield a dependency group with those that it includes (PEP 735)."""
    if name in seen:
        return
    seen.add(name)
    for each in groups.get(name, []):
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            yield from _group(groups, str(each.get("include-group")), seen)


def _of_files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern)}):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            yield line.partition(" #")[0].strip(), ""


def _chosen(names: Iterable[str]) -> list[str]:
    names = list(names)
    of_tests = [name for name in names if name.lower() in _EXTRAS]
    return of_tests or [name for name in names if name.lower() in _WIDER_EXTRAS]


def _parsed(text: str) -> Requirement | None:
    """Return a requirement; None for options, comments, paths and addresses."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return None if requirement.url else requirement


def _applies(requirement: Requirement, extra: str, version: str) -> bool:
    environment = {"extra": extra, "python_version": version, "python_full_version": f"{version}.0"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def _is_useful(requirement: Requirement, package: str) -> bool:
    name = canonicalize_name(requirement.name)
    return name not in _NOT_FOR_TESTS and name != canonicalize_name(package) and not name.startswith("types-")
