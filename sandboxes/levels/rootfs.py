"""The file system that sandboxed code sees, as a plan and as arguments of bwrap.

Read-only parts are /usr, the interpreter if it is outside /usr, and the requested packages. Writable parts are
size-limited tmpfs for /tmp, /mnt and POSIX shared memory. Nothing else is visible.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from agentloop.errors import UserError, nearest
from agentloop.sandboxes.interface.sandbox import WORKING_DIRECTORY, WRITABLE

PACKAGES = "/opt/packages"

_SETTINGS = (
    *("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache"),
    # some languages do not start without their settings; Racket compiles its whole library
    *("/etc/R", "/etc/java*-openjdk", "/etc/ldc2.conf", "/etc/mono", "/etc/racket"),
)
"""Visible parts of /etc: targets of links to Debian's programs, but no information about the machine."""

_ETC = {
    "/etc/passwd": b"sandbox:x:1000:1000::/tmp/work:/bin/sh\n",
    "/etc/group": b"sandbox:x:1000:\n",
    "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n",
}

ENVIRONMENT = {
    "HOME": WORKING_DIRECTORY,
    "LANG": "C.UTF-8",
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # the same code prints the same sets every time
    "PYTHONPATH": PACKAGES,
    "PYTHONUNBUFFERED": "1",  # output before a kill is not lost
    "TZ": "UTC",
    "USER": "sandbox",
    # One thread per library, because all code shares the cores, and every thread counts as a process.
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHON_CPU_COUNT": "1",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/tmp",
}


@dataclass(frozen=True, slots=True)
class RootFS:
    """A file system plan. `binds` maps host paths to read-only paths inside. `interpreter` runs the code."""

    interpreter: str
    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    """Pairs of (target, link)."""
    tmpfs_mb: int

    @classmethod
    def plan(cls, packages: Iterable[str], binds: Iterable[str], tmpfs_mb: int) -> RootFS:
        """Return a plan for this interpreter. `packages` are installed distributions, `binds` further host paths.

        Raises `UserError` if one of them does not exist.
        """
        interpreter = os.path.realpath(sys.executable)
        prefix = os.path.realpath(sys.base_prefix)
        shown = {"/usr": "/usr"}
        for pattern in _SETTINGS:
            shown |= {path: path for path in glob.glob(pattern)}
        links = [(interpreter, f"/opt/bin/{name}") for name in ("python", "python3")]
        for name in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink(f"/{name}"):
                links.append((os.readlink(f"/{name}"), f"/{name}"))
            elif os.path.isdir(f"/{name}"):
                shown[f"/{name}"] = f"/{name}"
        if not prefix.startswith("/usr"):
            shown[prefix] = prefix
        for path in binds:
            if not os.path.exists(path):
                raise UserError(f"The path {path!r} (option binds of the sandbox) does not exist.")
            shown[os.path.abspath(path)] = os.path.abspath(path)
        for source in package_paths(packages):
            shown[str(source)] = f"{PACKAGES}/{source.name}"
        return cls(interpreter, tuple(shown.items()), tuple(links), tmpfs_mb)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in the form that `inside.isolation.mounts.build_root` reads."""
        texts = [(path, content.decode()) for path, content in _ETC.items()]
        return {"binds": list(self.binds), "links": list(self.links), "texts": texts}

    def arguments(self, source: Callable[[int], str], file: Callable[[str, bytes], list[str]]) -> list[str]:
        """Return arguments of bwrap. `source(i)` is the path of bind i for the launcher; `file` writes a file."""
        size = str(self.tmpfs_mb << 20)
        arguments = ["--clearenv"]
        for name, value in ENVIRONMENT.items():
            arguments += ["--setenv", name, value]
        # The tmpfs first, because an interpreter or another visible path may be below it.
        for path in WRITABLE:
            arguments += ["--perms", "1777", "--size", size, "--tmpfs", path]
        for index, (_, shown) in enumerate(self.binds):
            arguments += ["--ro-bind", source(index), shown]
        for target, link in self.links:
            arguments += ["--symlink", target, link]
        for device in ("null", "zero", "full", "random", "urandom"):
            arguments += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
        for target, link in (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
            arguments += ["--symlink", f"/proc/self/{target}", f"/dev/{link}"]
        arguments += ["--proc", "/proc", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
        for path, content in _ETC.items():
            arguments += file(path, content)
        return [*arguments, "--dir", WORKING_DIRECTORY, "--remount-ro", "/", "--chdir", WORKING_DIRECTORY]


def package_paths(names: Iterable[str]) -> list[Path]:
    """Return the top-level entries in site-packages of installed distributions and their requirements."""
    paths: dict[Path, None] = {}
    for distribution in _with_requirements(names):
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in sorted(tops):
            if not top.endswith(".pth"):
                paths[Path(str(distribution.locate_file(top)))] = None
    return [path for path in paths if path.exists()]


def _with_requirements(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    requested = list(names)
    seen: set[str] = set()
    waiting = list(requested)
    while waiting:
        name = waiting.pop()
        if (key := re.sub(r"[-_.]+", "-", name).lower()) in seen:
            continue
        seen.add(key)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in requested:
                known = [d.metadata["Name"] for d in metadata.distributions()]
                raise UserError(
                    f"The package {name!r} for the sandbox is not installed: `pip install {name}`."
                    f"{nearest(name, known)}"
                ) from None
            continue  # a requirement for another platform or version
        yield distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement and (match := re.match(r"[\w.-]+", requirement)):
                waiting.append(match[0])
