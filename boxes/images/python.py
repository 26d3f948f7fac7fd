"""The images `builtin:python`: Python of this machine and its static busybox, with packages of the package index.

    builtin:python                             the Python that runs agentloop
    builtin:python3.12[pytest==9.0.1,attrs==25.4.0]

They need neither an engine nor a registry. List every package with its version: pip installs no others.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentloop.boxes.images import busybox
from agentloop.errors import UserError

_FORM = re.compile(r"builtin:python(?P<version>3\.\d+)?(\[(?P<packages>[^\[\]]*)\])?")
_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_PACKAGES = ("dist-packages", "ensurepip", "site-packages", "EXTERNALLY-MANAGED")
_UNUSED = ("config-*", "idlelib", "test", "tkinter", "turtledemo")
_LAYOUT = 1
"""Part of the key: changing the number rebuilds all images."""
_ABOUT = "import json, sys, sysconfig; print(json.dumps([sys.version, sys.executable, sysconfig.get_path('stdlib')]))"
_SCRIPTS = "import sysconfig; print(sysconfig.get_path('scripts'))"
_SECONDS = 900.0
_SHOWN_LINES = 8


@dataclass(slots=True, frozen=True)
class PythonImage:
    """The Python version and the packages that an image reference names."""

    reference: str
    version: str
    """Version, such as 3.12."""
    packages: tuple[str, ...]

    @classmethod
    def parse(cls, reference: str) -> PythonImage:
        """Parse an image reference. Raises `UserError`."""
        if (match := _FORM.fullmatch(reference)) is None:
            raise UserError(
                f"The image {reference!r} does not exist: use {busybox.NAME}, builtin:python, or one such as "
                "builtin:python3.12[pytest==9.0.1]."
            )
        packages = tuple(sorted(filter(None, map(str.strip, (match["packages"] or "").split(",")))))
        if wrong := [each for each in packages if not _PINNED.fullmatch(each)]:
            raise UserError(f"The image {reference!r} has {wrong[0]!r}: write packages as NAME==VERSION.")
        return cls(reference, match["version"] or _own_version(), packages)

    def key(self) -> str:
        """Return the identity of the image. Raises `UserError` if this machine lacks its Python or a busybox."""
        found = _interpreter(self.version)
        parts = [_LAYOUT, found.about, *self.packages, busybox.key()]
        return f"python-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]}"

    def fill(self, tree: Path) -> None:
        """Write the root file system to a directory. Raises `UserError` if the packages are unavailable."""
        found = _interpreter(self.version)
        busybox.fill(tree)
        (tree / "usr/bin").mkdir()
        (tree / "usr/bin/env").symlink_to("/bin/busybox")
        python = _copy_python(found, tree, self.version)
        _copy_libraries(tree, python.parents[1])  # before pip starts this Python
        if self.packages:
            self._install(python)
            _copy_libraries(tree, python.parents[1])
        # Otherwise each box would compile every module again, as its files are removed with it.
        _run(
            [str(python), "-m", "compileall", "-q", "-j", "0", str(python.parents[1] / "lib")],
            self.reference,
            check=False,
        )

    def _install(self, python: Path) -> None:
        options = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
        options += ["--no-warn-script-location", "--root-user-action", "ignore"]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
        _run([*pip, *options, *self.packages], self.reference)
        # Debian's Python has them in a directory that is not in PATH.
        scripts = Path(subprocess.check_output([python, "-I", "-c", _SCRIPTS], text=True).strip())
        for script in scripts.iterdir() if scripts.is_dir() else ():
            begin = f"#!{python.parent}/".encode()  # the Python of this directory
            if script.is_file() and not script.is_symlink() and (content := script.read_bytes()).startswith(begin):
                script.write_bytes(b"#!/usr/local/bin/" + content.removeprefix(begin))
                script.rename(python.parent / script.name)


@dataclass(slots=True, frozen=True)
class _Interpreter:
    """A Python of this machine."""

    about: str
    program: Path
    library: Path
    """Directory of the standard library."""


def _own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _interpreter(version: str) -> _Interpreter:
    own = Path(sys.base_prefix, "bin", f"python{version}")
    program = str(own) if version == _own_version() and own.is_file() else shutil.which(f"python{version}")
    missing = UserError(f"An image needs Python {version}, which this machine does not have: install it.")
    if program is None:
        raise missing
    done = subprocess.run([program, "-I", "-c", _ABOUT], capture_output=True, text=True)
    if done.returncode != 0:
        raise missing
    about, executable, library = json.loads(done.stdout)
    return _Interpreter(about, Path(executable).resolve(), Path(library))


def _copy_python(found: _Interpreter, tree: Path, version: str) -> Path:
    """Copy the program and its standard library below /usr/local, where Python finds both; return the program."""
    programs = tree / "usr/local/bin"
    programs.mkdir(parents=True)
    program = programs / f"python{version}"
    shutil.copy2(found.program, program)
    for name in ("python", "python3"):
        (programs / name).symlink_to(program.name)
    library = tree / "usr/local/lib" / f"python{version}"
    shutil.copytree(found.library, library, ignore=shutil.ignore_patterns(*_PACKAGES, *_UNUSED))
    return program


def _copy_libraries(tree: Path, below: Path) -> None:
    """Copy the shared libraries that programs and modules need, to the same paths as on this machine."""
    needing = [path for path in below.rglob("*") if path.is_file() and not path.is_symlink() and _is_elf(path)]
    # `ldd` fails for programs without libraries; the files it names exist.
    told = subprocess.run(["ldd", *needing], capture_output=True, text=True).stdout
    for line in told.splitlines():
        name = line.partition("=>")[2].strip() or line.strip()
        source = Path(name.partition(" (")[0])
        target = tree / str(source).lstrip("/")
        if source.is_absolute() and not source.is_relative_to(tree) and source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _run(command: list[str], reference: str, *, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if check and done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:]
        raise UserError(f"The image {reference} cannot be made:\n" + "\n".join(lines))
