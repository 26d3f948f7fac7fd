"""Fetch the source of a package: from the package index, an archive or a folder."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from agentloop.envs.harbor.making.swe.packages.layout import Layout, layout_of
from agentloop.errors import UserError
from agentloop.process import owned_folders

_OF_THE_INDEX = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(==(?P<version>[\w.!+-]+))?")
_BUILT = shutil.ignore_patterns(
    *(".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", ".eggs", "*.egg", "build", "dist", "node_modules"),
    *("__pycache__", "*.pyc", "*.pyo", ".pytest_cache", ".mypy_cache", ".ruff_cache"),
)
"""Files that version control, builds and tests create."""
_SECONDS = 600.0
_SHOWN_LINES = 6


@dataclass(slots=True, frozen=True)
class Package:
    """The source of a package, unpacked."""

    name: str
    version: str
    folder: Path
    digest: str
    """SHA-256 of the names and contents of all files."""
    layout: Layout


def fetch(package: str, folder: Path) -> Package:
    """Unpack a package to a new folder, without version control, builds and compiled files.

    `package` is NAME==VERSION or NAME of the package index, an archive, or a folder. Raises `UserError` if it is
    unavailable or has no tests.
    """
    with owned_folders.temporary("agentloop-source-") as made:
        source = _source(package, made)
        # Links become files: boxes and verifiers get no links.
        shutil.copytree(source, folder, ignore=_left_out)
    (folder / "setup.sh").unlink(missing_ok=True)  # Harbor would run it
    name, version = (re.sub(r"[^\w.+-]+", "-", each) for each in _name(folder, Path(package).name))
    _write_metadata(folder, name, version)
    return Package(name, version, folder, _digest(folder), layout_of(folder, name))


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Return the names in a folder that are not copied, such as broken links."""
    return {*_BUILT(folder, names), *(name for name in names if not Path(folder, name).exists())}


def _source(package: str, scratch: Path) -> Path:
    path = Path(package).expanduser()
    if path.is_dir():
        return path
    archive = path if path.is_file() else _download(package, scratch / "archive")
    unpacked = scratch / "unpacked"
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as file:
                file.extractall(unpacked)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{archive.name} cannot be unpacked as a source distribution: {error}.") from error
    inside = list(unpacked.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else unpacked


def _download(package: str, folder: Path) -> Path:
    if (match := _OF_THE_INDEX.fullmatch(package)) is None or package.endswith((".gz", ".zip")):
        raise UserError(f"{package!r} is neither a file, a folder, nor a package: write NAME==VERSION or a path.")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", match["name"], "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    found = list(folder.iterdir()) if folder.is_dir() else []
    if done.returncode != 0 or len(found) != 1:
        lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:])
        raise UserError(
            f"The source distribution of {package} cannot be downloaded. Name another version, an archive or a "
            f"folder with the source. pip says:\n{lines}"
        )
    return found[0]


def _name(folder: Path, fallback: str) -> tuple[str, str]:
    if (info := folder / "PKG-INFO").is_file():
        headers = HeaderParser().parsestr(info.read_text(encoding="utf-8", errors="replace"))
        return str(headers["Name"]), str(headers["Version"])
    project = pyproject(folder).get("project", {})
    return str(project.get("name", fallback)), str(project.get("version", "0"))


def pyproject(folder: Path) -> dict[str, Any]:
    """Return the content of pyproject.toml, empty if there is none. Raises `UserError` if it is not TOML."""
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"pyproject.toml of the package is not valid TOML: {error}.") from error


def _write_metadata(folder: Path, name: str, version: str) -> None:
    """Let programs find the version of the package as if it were installed, unless setuptools has recorded it."""
    if any(folder.glob("*.egg-info")) or any(folder.glob("src/*.egg-info")) or any(folder.glob("lib/*.egg-info")):
        return
    info = folder / "PKG-INFO"
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else None
    root = next((folder / each for each in ("src", "lib") if (folder / each).is_dir()), folder)
    made = root / f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    made.mkdir()
    made.joinpath("METADATA").write_text(text or f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
