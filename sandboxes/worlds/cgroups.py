"""Control groups: kernel limits on the memory, the processes and the processor time of a whole world.

Supported are version 1 (its controllers mounted below /sys/fs/cgroup) and version 2 (one tree). Cgroups are made below
the cgroup of this process, so the limits of its container or service hold for all of them together.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TOP = Path("/sys/fs/cgroup")
_PREFIX = "agentloop-"
_MAIN = f"{_PREFIX}main"
_PERIOD = 100_000
"""Period of the quota of processor time, in microseconds."""


@dataclass(slots=True)
class Cgroup:
    """The cgroup of one world. `directories` by controller; in version 2 they are the same."""

    directories: Mapping[str, Path]
    version: int
    _memory: int = 0
    _kills: int = 0
    _events: int = -1
    _last: int = 0
    _is_gone: bool = False

    def limit(self, memory: int) -> None:
        """Set the limit of memory in bytes, files in memory included. Raises `OSError`."""
        if memory == self._memory:
            return
        directory = self.directories["memory"]
        (directory / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")).write_text(str(memory))
        if self.version == 1 and (sockets := directory / "memory.kmem.tcp.limit_in_bytes").exists():
            sockets.write_text(str(memory))  # version 1 counts socket buffers separately
        self._memory = memory

    def limit_cpus(self, cpus: float) -> bool:
        """Limit the processor time to this many processors; return whether the kernel can. Raises `OSError`."""
        directory = self.directories.get("cpu")
        if directory is None:
            return False
        quota = round(cpus * _PERIOD)
        if self.version == 2:
            (directory / "cpu.max").write_text(f"{quota} {_PERIOD}")
        else:
            (directory / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (directory / "cpu.cfs_quota_us").write_text(str(quota))
        return True

    def add(self, pid: int) -> None:
        for directory in set(self.directories.values()):
            (directory / "cgroup.procs").write_text(str(pid))

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process here since the last call. Works after the removal, too."""
        try:
            kills = self._last if self._is_gone else self._count()
        except OSError:  # its owner has removed it
            return False
        before, self._kills = self._kills, kills
        return kills > before

    def _count(self) -> int:
        if self._events < 0:
            name = "memory.events" if self.version == 2 else "memory.oom_control"
            self._events = os.open(self.directories["memory"] / name, os.O_RDONLY | os.O_CLOEXEC)
        words = os.pread(self._events, 4096, 0).decode().split()
        return int(words[words.index("oom_kill") + 1])

    def processes(self) -> list[int]:
        """Return the pids of its processes."""
        return [int(word) for word in (self.directories["pids"] / "cgroup.procs").read_text().split()]

    def remove(self) -> bool:
        """Remove the cgroup. Return False if that is not possible yet because a process has not been reaped."""
        if not self._is_gone:
            with contextlib.suppress(OSError):  # already removed by another process
                self._last = self._count()
            self._is_gone = True
            if self._events >= 0:
                os.close(self._events)
        try:
            for directory in set(self.directories.values()):
                if directory.exists():
                    directory.rmdir()
        except OSError:
            return False
        return True


class Cgroups:
    """The cgroups of one owner, in a separate directory of each hierarchy."""

    def __init__(self, parents: Mapping[str, Path], version: int) -> None:
        self._version = version
        self._parents = parents
        self._dying: list[Cgroup] = []
        self._made = 0

    @classmethod
    def find(
        cls, top: Path = _TOP, own: Iterable[tuple[str, str]] | None = None, *, cpus: bool = False
    ) -> Cgroups | None:
        """Find a place for cgroups that limit memory and processes; None if this process may not make any.

        `own` has the (controller, path) pairs of the cgroups of this process. With `cpus` they also limit processor
        time, if the kernel lets this process do so.
        """
        paths = dict(_own_cgroups() if own is None else own)
        if (top / "cgroup.controllers").exists():
            home = top / paths.get("", "").lstrip("/")
            version, homes = 2, _delegated(home.parent if home.name == _MAIN else home, cpus=cpus)
        else:
            version = 1
            homes = {name: top / name / paths.get(name, "").lstrip("/") for name in ("memory", "pids")}
            cpu = top / "cpu" / paths.get("cpu", "").lstrip("/")
            if cpus and (cpu / "cpu.cfs_quota_us").exists() and os.access(cpu, os.W_OK):
                homes["cpu"] = cpu
        if not homes or not all(os.access(home, os.W_OK) for home in homes.values()):
            return None
        for home in set(homes.values()):
            _remove_stale(home)
        name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        parents = {controller: home / name for controller, home in homes.items()}
        try:
            for parent in set(parents.values()):
                parent.mkdir()
                if version == 2:
                    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in parents))
        except OSError:
            for parent in set(parents.values()):
                if parent.exists():
                    parent.rmdir()
            return None
        return cls(parents, version)

    @property
    def paths(self) -> list[str]:
        return sorted({str(parent) for parent in self._parents.values()})

    def create(self, processes: int) -> Cgroup:
        """Make a cgroup for this many processes and threads. Raises `OSError`."""
        self._dying = [cgroup for cgroup in self._dying if not cgroup.remove()]
        self._made += 1
        directories = {name: parent / f"slot-{self._made}" for name, parent in self._parents.items()}
        for directory in set(directories.values()):
            directory.mkdir()
        (directories["pids"] / "pids.max").write_text(str(processes))
        if self._version == 2 and (swap := directories["memory"] / "memory.swap.max").exists():
            swap.write_text("0")
        return Cgroup(directories, self._version)

    def discard(self, cgroup: Cgroup) -> None:
        """Remove a cgroup whose processes are dying, either now or when the next one is made."""
        if not cgroup.remove():
            self._dying.append(cgroup)

    def close(self) -> None:
        """Remove all cgroups, whose processes are dead."""
        for cgroup in self._dying:
            cgroup.remove()
        for parent in set(self._parents.values()):
            _remove(parent)


def _own_cgroups() -> list[tuple[str, str]]:
    pairs = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        pairs += [(controller, path) for controller in controllers.split(",")]
    return pairs


def _delegated(home: Path, *, cpus: bool) -> dict[str, Path]:
    """Prepare version 2, in which a cgroup with processes cannot limit cgroups below it; return it by controller.

    This process moves into a cgroup below its own, as a service with `Delegate=yes` is expected to do. The first
    process of a container may do so, too.
    """
    try:
        there = set((home / "cgroup.controllers").read_text().split())
        wanted = {"memory", "pids"} | ({"cpu"} & there if cpus else set())
        if not wanted <= there:
            return {}
        if not wanted <= set((home / "cgroup.subtree_control").read_text().split()):
            leaf = home / _MAIN
            leaf.mkdir(exist_ok=True)
            for pid in (home / "cgroup.procs").read_text().split():
                (leaf / "cgroup.procs").write_text(pid)
            (home / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
    except OSError:
        return {}
    return dict.fromkeys(sorted(wanted), home)


def _remove_stale(home: Path) -> None:
    """Remove cgroups of owners that were killed together with their template."""
    for path in home.glob(f"{_PREFIX}*"):
        match = re.fullmatch(rf"{_PREFIX}(\d+)-[0-9a-f]+", path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove(path)


def _remove(directory: Path) -> None:
    """Remove a cgroup and those below it, unless one is in use. Another process may do so at the same time."""
    try:
        children = [path for path in directory.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return
    for path in [*children, directory]:
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return
