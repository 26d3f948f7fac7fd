"""What a step has to give up before it may run untrusted code."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentloop.sandboxes.inside import libc, sweep

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


@dataclass(slots=True, frozen=True)
class Walls:
    """How the steps of a world are confined. What the whole world lacks (namespaces, capabilities) is not here."""

    directory: str
    """The working directory."""
    user: int | None = None
    """The user and group that steps become."""
    filter: bytes = b""
    """A seccomp filter for steps, where the whole world has none."""
    restrict: Callable[[], None] = nothing
    """Called in a step when its rights are dropped."""
    renew: Callable[[], None] | None = None
    """Empties the writable directories; None where the world is used only once."""
    kill: Callable[[], None] = sweep.namespace
    """Kills every process of the world but its first."""

    counts_processes: bool = True
    """Whether the limit of processes can be set: elsewhere it would count all that the user runs on the machine."""

    def confine(self, limits: Mapping[str, int]) -> None:
        """Give up, in the process that will run the code, what it must not have. Raises `OSError`.

        In a slot this calls nothing through ctypes: the first such call of a fork costs as much as all the rest.
        """
        for name, value in limits.items():
            if name == "processes" and not self.counts_processes:
                continue
            resource.setrlimit(_LIMITS[name], (value, value))
        # One byte: neither a core file (too small) nor a core dump into a program of the host (1 forbids it).
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        if self.user is not None:
            _first_to_die()
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)  # and with root go all capabilities
        else:
            libc.drop_capabilities()
            libc.set_dumpable(True)  # else its own files in /proc belong to root
            _first_to_die()
        os.umask(0o022)
        self.restrict()
        if self.filter:
            libc.no_new_privileges()
            libc.install_filter(self.filter)


def _first_to_die() -> None:
    """Where memory runs out the kernel ends this before the process that keeps the world."""
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"1000")
    os.close(fd)
