"""The isolation level `landlock`: Landlock, seccomp and resource limits, for machines that forbid user namespaces.

It needs Linux 6.12 and no privilege. The code reads /usr, the interpreter and the given paths, and writes to its own
directory. It has no sockets and cannot signal other processes. This level is weaker than namespaces:

 - The code can see that other files exist, but not read them.
 - Disk is limited for each file, memory for each process.
 - There is no /proc, no /dev/shm (so `multiprocessing` has no locks), and only its directory below /tmp and /mnt.
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
from agentloop.sandboxes.levels.rootfs import RootFS
from agentloop.sandboxes.levels.seccomp import build_filter
from agentloop.sandboxes.worlds import boot

_DEVICES = ("null", "zero", "full", "random", "urandom")
_FIRST_USER, _USERS = 0x60000000, 0x0FFF0000
"""Range of users for the code if this runs as root. Each world has one; they are above container managers and slots."""
_MAX_WORLDS = 4096


class Landlock(DirectorySandbox):
    """Executions confined by Landlock.

    `packages`: installed distributions that the code may import, besides the standard library; their requirements are
    included. `binds`: further host paths that it may read. `max_processes`: processes and threads of one execution;
    unless this runs as root, `max_processes` per slot for all of them together. `disk_mb`: MiB of one file.
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
                f"it needs Landlock version {rules.MIN_ABI} (Linux 6.12), and {found}. If Landlock was disabled at "
                "boot, enable it: lsm=landlock,... on the kernel's command line."
            )

        if os.geteuid() == 0:
            for path in (boot.INTERPRETER, *self._readable):
                if not others_can_reach(path):
                    raise self._unavailable(
                        f"started as root it runs code as another user, which cannot reach {path}. Start it as a user "
                        "other than root, or use a Python below /usr."
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
            # Other users cannot enter a virtual environment below a directory of root.
            "listable": [installed] if not is_root or others_can_reach(installed) else [],
            "processes": 0 if is_root else self._max_processes * self._size,
        }
        return {
            "directory": directory,
            "user": user,
            "counts_processes": is_root,
            "filter": build_filter(has_namespaces=False),
            "restrict": (rules.__name__, restriction),
            "enclose": rules.__name__,
        }


def others_can_reach(path: str) -> bool:
    """Return whether users other than root can enter all directories of a path."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(path).resolve().parents)
