"""What a step has to give up before it may run untrusted code."""

from __future__ import annotations

import os
import resource
from os import close, setresgid, setresuid, umask
from os import open as open_file
from os import write as write_some
from resource import setrlimit

from agentloop.sandboxes.inside.isolation import libc, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WRITE = os.O_WRONLY | os.O_CLOEXEC
_CORE = resource.RLIMIT_CORE
_LIMITS = {
    "processes": resource.RLIMIT_NPROC,
    "data": resource.RLIMIT_DATA,
    "address_space": resource.RLIMIT_AS,
    "file_size": resource.RLIMIT_FSIZE,
    "cpu_seconds": resource.RLIMIT_CPU,
    "open_files": resource.RLIMIT_NOFILE,
}


def nothing() -> None:
    """Where there is nothing to do."""


class Walls:
    """How the steps of a world are confined. What the whole world lacks (namespaces, capabilities) is not here.

    `directory`: the working directory. `user`: the user and group that steps become. `filter`: a seccomp filter for
    steps, where the whole world has none. `restrict`: called in a step when its rights are dropped. `renew`: empties
    the writable directories; None where the world is used only once. `kill`: kills every process of the world but its
    first. `counts_processes`: whether the limit of processes can be set: elsewhere it would count all that the user
    runs on the machine.
    """

    def __init__(
        self,
        *,
        directory: str,
        user: int | None = None,
        filter: bytes = b"",
        restrict: Callable[[], None] = nothing,
        renew: Callable[[], None] | None = None,
        kill: Callable[[], None] = sweep.namespace,
        counts_processes: bool = True,
    ) -> None:
        self.directory = directory
        self.user = user
        self.filter = filter
        self.restrict = restrict
        self.renew = renew
        self.kill = kill
        self.counts_processes = counts_processes

    def confine(self, limits: Mapping[str, int]) -> None:
        """Give up, in the process that will run the code, what it must not have. Raises `OSError`.

        In a slot this calls nothing through ctypes: the first such call of a fork costs as much as all the rest.
        """
        for name, value in limits.items():
            if name == "processes" and not self.counts_processes:
                continue
            setrlimit(_LIMITS[name], (value, value))
        # One byte: neither a core file (too small) nor a core dump into a program of the host (1 forbids it).
        setrlimit(_CORE, (1, 1))
        if self.user is not None:
            _first_to_die()
            setresgid(self.user, self.user, self.user)
            setresuid(self.user, self.user, self.user)  # and with root go all capabilities
        else:
            libc.drop_capabilities()
            libc.set_dumpable(True)  # else its own files in /proc belong to root
            _first_to_die()
        umask(0o022)
        self.restrict()
        if self.filter:
            libc.no_new_privileges()
            libc.install_filter(self.filter)


def _first_to_die() -> None:
    """Where memory runs out the kernel ends this before the process that keeps the world."""
    fd = open_file("/proc/self/oom_score_adj", _WRITE)
    write_some(fd, b"1000")
    close(fd)
