"""Confine a step: give up every right before running untrusted code."""

from __future__ import annotations

import os
import resource
from os import close, setresgid, setresuid, umask
from os import open as open_file
from os import write as write_some
from resource import setrlimit

from agentloop.sandboxes.inside.isolation import cleanup, libc

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
_QUOTAS = {
    resource.RLIMIT_SIGPENDING: 256,
    resource.RLIMIT_MEMLOCK: 64 << 10,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_NICE: 0,
    resource.RLIMIT_RTPRIO: 0,
}
"""Limits for quotas that the kernel counts for each user of the machine, the same for all executions."""


def limit_quotas() -> None:
    """Set the limits that do not depend on the execution, for this process and those that it starts."""
    for limit, most in _QUOTAS.items():
        hard = resource.getrlimit(limit)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            setrlimit(limit, (value, value))
        except PermissionError:  # gVisor, whose quotas are not those of the machine
            continue


def nothing() -> None:
    """Do nothing."""


class Confinement:
    """Confinement of the steps of a world, in addition to that of the whole world (namespaces, ...).

    `directory`: the working directory. `user`: the user and group of steps. `filter`: a seccomp filter for steps, if
    the world has none. `restrict`: a function that drops further rights in a step. `renew`: a function that empties the
    writable directories; None if the world is used only once. `kill`: a function that kills every process of the world
    except the first. `counts_processes`: whether to set the limit of processes, which counts all processes of the user
    on the machine.
    """

    def __init__(
        self,
        *,
        directory: str,
        user: int | None = None,
        filter: bytes = b"",
        restrict: Callable[[], None] = nothing,
        renew: Callable[[], None] | None = None,
        kill: Callable[[], None] = cleanup.kill_namespace,
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
        """Drop all rights of this process, which will run the code, except system calls. Raises `OSError`.

        In a slot this does not use ctypes, whose first call in a fork costs as much as everything else.
        """
        for name, value in limits.items():
            if name == "processes" and not self.counts_processes:
                continue
            setrlimit(_LIMITS[name], (value, value))
        # One byte is too small for a core file, and a limit of 1 also prevents core dumps into a program of the host.
        setrlimit(_CORE, (1, 1))
        if self.user is not None:
            _first_to_die()
            setresgid(self.user, self.user, self.user)
            setresuid(self.user, self.user, self.user)  # giving up root also gives up all capabilities
        else:
            libc.drop_capabilities()
            libc.set_dumpable(True)  # else root would own its files in /proc
            _first_to_die()
        umask(0o022)
        self.restrict()

    def refuse_calls(self) -> None:
        """Install the filter of system calls, if the world has none. Raises `OSError`."""
        if self.filter:
            libc.no_new_privileges()
            libc.install_filter(self.filter)


def _first_to_die() -> None:
    """Let the kernel kill this process before the first process of the world if memory runs out."""
    fd = open_file("/proc/self/oom_score_adj", _WRITE)
    write_some(fd, b"1000")
    close(fd)
