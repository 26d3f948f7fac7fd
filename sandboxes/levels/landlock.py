"""The isolation level `landlock`: Landlock, seccomp and resource limits, for where user namespaces are forbidden.

It needs no privilege, and Linux 6.12. The code reads /usr, the interpreter and what it is shown, and writes to a
directory of its own; it has no sockets, and signals reach nobody else. Weaker than namespaces: it sees that other files
exist (not what is in them), disk is limited by file and memory by process, there is no /proc, no /dev/shm (and so no
locks of `multiprocessing`), and nothing below /tmp and /mnt but its directory.
"""

from __future__ import annotations

import itertools
import os
import stat
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from agentloop.sandboxes.inside.isolation import landlock as rules
from agentloop.sandboxes.levels.directories import DirectorySandbox
from agentloop.sandboxes.levels.landlock_filter import build_landlock_filter
from agentloop.sandboxes.levels.rootfs import RootFS
from agentloop.sandboxes.worlds import boot

_DEVICES = ("null", "zero", "full", "random", "urandom")
_FIRST_USER, _USERS = 0x60000000, 0x0FFF0000
"""Users that the code is where this runs as root: one a world, above those of container managers and of slots."""
_MAX_WORLDS = 4096


class Landlock(DirectorySandbox):
    """Executions behind Landlock.

    `packages`: installed distributions that the code may import, besides the standard library (their requirements come
    along). `binds`: further host paths that it may read, where they are. `max_processes`: processes and threads of one
    execution; where this does not run as root, of all of them together so many a slot. `disk_mb`: MiB of one file.
    """

    level: ClassVar[str] = "landlock"
    modules: Sequence[str] = (rules.__name__,)

    def __init__(
        self,
        *,
        slots: int | None = None,
        packages: Sequence[str] = (),
        binds: Sequence[str] = (),
        max_processes: int = 64,
        disk_mb: int = 256,
        max_sessions: int = 256,
    ) -> None:
        super().__init__(slots=slots, max_processes=max_processes, disk_mb=disk_mb, max_sessions=max_sessions)
        rootfs = RootFS.plan(packages, binds, disk_mb)
        self._readable = [path for path, _ in rootfs.binds]
        self._readable += [f"/{name}" for name in ("bin", "lib", "lib64", "sbin") if os.path.exists(f"/{name}")]
        self._max_processes = max_processes
        self._made = itertools.count()

    async def _open(self) -> None:
        abi = rules.abi()
        if abi < rules.MIN_ABI:
            found = f"Linux {os.uname().release} has version {abi}" if abi else "this kernel does not offer it"
            raise self._unavailable(
                f"it needs Landlock of version {rules.MIN_ABI} (Linux 6.12), and {found}. Where it was left out at "
                "boot, add it: lsm=landlock,... on the kernel's command line."
            )

        if os.geteuid() == 0:
            for path in (boot.INTERPRETER, *self._readable):
                if not _others_reach(path):
                    raise self._unavailable(
                        f"started as root it runs code as another user, who cannot reach {path}. Start it as a user "
                        "who is not root, or use a Python below /usr."
                    )

    def _plan(self, directory: str) -> dict[str, Any]:
        is_root = os.geteuid() == 0
        user = None
        if is_root:
            user = _FIRST_USER + (os.getpid() * _MAX_WORLDS + next(self._made) % _MAX_WORLDS) % _USERS
            os.chown(directory, user, user)
        installed = sysconfig.get_path("purelib")
        restriction = {
            "readable": self._readable,
            "writable": [directory, *(f"/dev/{name}" for name in _DEVICES)],
            # In a virtual environment of root's own there is nothing for others to find.
            "listable": [installed] if not is_root or _others_reach(installed) else [],
            "processes": 0 if is_root else self._max_processes * self._size,
        }
        return {
            "directory": directory,
            "user": user,
            "counts_processes": is_root,
            "filter": build_landlock_filter(),
            "restrict": (rules.__name__, restriction),
            "enclose": rules.__name__,
        }


def _others_reach(path: str) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).resolve().parents)
