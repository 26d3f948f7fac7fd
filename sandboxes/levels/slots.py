"""The isolation level `slots`: namespaces made in advance, each with a warm interpreter that forks per execution.

A slot has its own user, pid, mount, network, IPC and UTS namespaces and its own cgroup. It runs one execution at a
time, as an unprivileged user without capabilities, behind a seccomp filter, in its own writable directories. When the
execution has ended, one system call kills every process of the slot, and the directories are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import WORKING_DIRECTORY, WRITABLE
from agentloop.sandboxes.levels.rootfs import RootFS
from agentloop.sandboxes.levels.seccomp import build_filter
from agentloop.sandboxes.levels.slot_template import PreloadError, SlotTemplate, preload_packages
from agentloop.sandboxes.worlds.cgroups import Cgroup, Cgroups
from agentloop.sandboxes.worlds.pooled import USER_NAMESPACES, PooledSandbox
from agentloop.sandboxes.worlds.world import PidFd, World

_SETUP_SECONDS = 30.0
_SCRATCH = (*WRITABLE, "/dev/shm")
_CALLS_OF_THE_SLOT = ("mount", "umount2")
"""Calls with which the first process of a slot renews the directories. The code has neither the key nor the right."""


class Slots(PooledSandbox):
    """Executions in warm slots.

    `slots`: executions at once, by default four times the cores. `preload`: modules imported before the code starts.
    `packages`: installed distributions that the code may import besides the standard library; their requirements and
    the packages of `preload` are included. `binds`: further host paths to show read-only at the same place.
    `max_processes`: processes and threads of one execution. `disk_mb`: MiB of each of its writable directories, /tmp,
    /mnt and /dev/shm.
    """

    level: ClassVar[str] = "slots"
    requires: ClassVar[str] = (
        f"It needs Linux 5.14 or newer, and root or user namespaces for unprivileged processes. {USER_NAMESPACES}"
    )
    reusable: ClassVar[bool] = True

    def __init__(
        self,
        *,
        slots: int | None = None,
        preload: Sequence[str] = (),
        packages: Sequence[str] = (),
        binds: Sequence[str] = (),
        max_processes: int = 64,
        disk_mb: int = 256,
        max_sessions: int = 256,
    ) -> None:
        super().__init__(slots=slots, max_processes=max_processes, disk_mb=disk_mb, max_sessions=max_sessions)
        self._preload = tuple(preload)
        self.rootfs = RootFS.plan([*packages, *preload_packages(preload)], binds, disk_mb)
        for _, shown in self.rootfs.binds:
            if any(shown == top or shown.startswith(f"{top}/") for top in _SCRATCH):
                raise UserError(f"The level 'slots' cannot show {shown}: {', '.join(WRITABLE)} belong to the code.")
        self.template: SlotTemplate | None = None
        self.cgroups: Cgroups | None = None

    @property
    def has_cgroups(self) -> bool:
        """Return whether the memory limit holds for all processes of an execution together, instead of each."""
        return self.cgroups is not None

    async def _open(self) -> None:
        self.cgroups = Cgroups.find()
        try:
            self.template = await SlotTemplate.start(self._plan(self.cgroups))
        except PreloadError:
            self._close_cgroups()
            raise
        except SandboxError as error:
            self._close_cgroups()
            raise self._unavailable(str(error)) from error

    def _plan(self, cgroups: Cgroups | None) -> dict[str, Any]:
        key = int.from_bytes(os.urandom(4), "little")
        return {
            "owner": os.getpid(),
            "root": self.rootfs.as_dict(),
            "cgroups": cgroups.paths if cgroups else [],
            "preload": list(self._preload),
            "writable": list(_SCRATCH),
            "directory": WORKING_DIRECTORY,
            "disk_mb": self._bounds.disk_mb,
            "filter": build_filter(keyed=_CALLS_OF_THE_SLOT, key=key),
            "key": key,
        }

    async def _make(self) -> World:
        if self.template is None:
            raise SandboxError("The sandbox was closed.")
        control, pid, pidfd = await self.template.make()
        process = PidFd(pidfd)
        try:
            cgroup = self._cgroup_of(pid)
        except OSError as error:
            control.close()
            process.kill()
            raise SandboxError(f"A slot could not be put into its cgroup: {error}.") from error
        world = World(control, process, cgroup)
        world.gone = lambda: self._gone(cgroup)
        await world.ready(_SETUP_SECONDS)
        return world

    def _cgroup_of(self, pid: int) -> Cgroup | None:
        if self.cgroups is None:
            return None
        cgroup = self.cgroups.create(self._bounds.max_processes + 1)
        try:
            cgroup.add(pid)
        except OSError:
            self.cgroups.discard(cgroup)
            raise
        return cgroup

    def _gone(self, cgroup: Cgroup | None) -> None:
        if cgroup is not None and self.cgroups is not None:
            self.cgroups.discard(cgroup)

    def _usable(self) -> bool:
        return self.template is not None and self.template.alive

    async def _shut(self) -> None:
        if self.template is not None:
            await self.template.close()
            self.template = None
        self._close_cgroups()

    def _close_cgroups(self) -> None:
        if self.cgroups is not None:
            self.cgroups.close()
            self.cgroups = None
