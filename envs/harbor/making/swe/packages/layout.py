"""`Layout`: which files of a source folder are the package, and which are its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentloop.errors import UserError

TEST_FILE = r"(?:.*/)?(?:(?:tests?|testing)/.*|(?:conftest|tests?|test_[^/]*|[^/]*_tests?)\.py)"
"""Paths of tests and their files. The box of the tests also reads it."""
_TEST_FOLDERS = ("tests", "test", "testing")
_NO_PACKAGES = {*_TEST_FOLDERS, "benchmark", "benchmarks", "bin", "ci", "doc", "docs", "example", "examples", "fuzz"}
_NO_PACKAGES |= {"perf", "requirements", "scripts", "tools"}
_NO_MODULES = {"conftest", "dodo", "fabfile", "noxfile", "setup", "tasks", "versioneer"}


@dataclass(slots=True, frozen=True)
class Layout:
    """Paths relative to a source folder."""

    root: str
    """Directory that programs import from: `src`, or "." for the folder itself."""
    parts: tuple[str, ...]
    """Packages and modules: directories and files."""
    tests: tuple[str, ...]
    """Directories and files with the tests."""

    def sources(self, folder: Path) -> list[str]:
        """Return the sorted paths of the package's Python files that are not tests."""
        found = []
        for part in self.parts:
            path = folder / part
            files = path.rglob("*.py") if path.is_dir() else [path]
            found += [str(each.relative_to(folder)) for each in files]
        return sorted(each for each in found if not is_test(each))


def is_test(path: str) -> bool:
    """Return whether a path below the source folder belongs to the tests or their files."""
    return re.fullmatch(TEST_FILE, path) is not None


def layout_of(folder: Path, name: str) -> Layout:
    """Find the package `name` and its tests in a source folder. Raises `UserError` if either is missing."""
    root, parts = _parts(folder, name)
    return Layout(root, parts, _tests(folder, name, parts))


def _parts(folder: Path, name: str) -> tuple[str, tuple[str, ...]]:
    for root in ("src", "lib", "."):
        found = {path.stem: path for path in _importable(folder / root)}
        if not found:
            continue
        # Other files beside the package itself, such as a script, count only if the package declares them.
        own = {each for each in found if _plain(each) == _plain(name)} | (_top_level(folder / root) & set(found))
        chosen = sorted(own or found)
        return root, tuple(str(found[each].relative_to(folder)) for each in chosen)
    raise UserError(f"{name} has no Python package in its source: it must be a folder with __init__.py, or a module.")


def _importable(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        is_package = (path / "__init__.py").is_file() and path.name not in _NO_PACKAGES
        is_module = path.suffix == ".py" and path.stem not in _NO_MODULES and not is_test(path.name)
        if is_package or (is_module and path.is_file()):
            yield path


def _top_level(folder: Path) -> set[str]:
    """Return the names that setuptools recorded."""
    files = folder.glob("*.egg-info/top_level.txt") if folder.is_dir() else ()
    return {name for file in files for name in file.read_text(encoding="utf-8").split()}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "", name).lower().removeprefix("python")


def _tests(folder: Path, name: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    folders = [*_TEST_FOLDERS, *(f"{part}/{each}" for part in parts for each in _TEST_FOLDERS)]
    if found := [each for each in folders if any((folder / each).rglob("*test*.py"))]:
        return tuple(found)
    if files := [
        path.name for path in sorted(folder.glob("*.py")) if is_test(path.name) and path.name != "conftest.py"
    ]:
        return tuple(files)
    if inside := [part for part in parts if any(map(_is_test_file, (folder / part).rglob("*.py")))]:
        return tuple(inside)
    raise UserError(
        f"{name} has no tests in its source distribution: choose another version, or give a folder with its whole "
        "source, such as a checkout."
    )


def _is_test_file(path: Path) -> bool:
    return is_test(path.name) and path.name != "conftest.py"
