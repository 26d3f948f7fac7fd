"""The isolation level `bubblewrap`: bwrap makes fresh namespaces for every execution, without privileges.

Inside there are no files of the host except /usr and the interpreter, no network except a private loopback, no other
processes and no environment. A seccomp filter and resource limits are added (`seccomp`, `rootfs`). Memory is limited
per process, not in total, because this level uses no cgroup.
https://github.com/containers/bubblewrap
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import WORKING_DIRECTORY
from agentloop.sandboxes.levels.rootfs import RootFS
from agentloop.sandboxes.levels.seccomp import build_filter
from agentloop.sandboxes.worlds import boot, launcher
from agentloop.sandboxes.worlds.pooled import USER_NAMESPACES, PooledSandbox
from agentloop.sandboxes.worlds.spawner import Spawner
from agentloop.sandboxes.worlds.streams import Drain, memory_file
from agentloop.sandboxes.worlds.world import World

_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"),
    *("--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--as-pid-1"),
)
_SECCOMP_FD, _SOURCE_FD, _FIRST_FILE_FD = 5, 6, 7
_SETUP_SECONDS = 60.0


class Bubblewrap(PooledSandbox):
    """Executions in bubblewrap.

    `slots`: executions at once, by default four times the cores. `packages`: installed distributions that the code may
    import, besides the standard library; their requirements are included. `binds`: further host paths to show read-only
    at the same place. `max_processes`: processes and threads of one execution. `disk_mb`: MiB of each of its writable
    directories, /tmp, /mnt and /dev/shm.
    """

    level: ClassVar[str] = "bubblewrap"
    requires: ClassVar[str] = (
        f"It needs bubblewrap 0.8 or newer and user namespaces for unprivileged processes. {USER_NAMESPACES}"
    )

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
        self._rootfs = RootFS.plan(packages, binds, disk_mb)
        self._files: list[bytes] = []
        self._arguments = self._build_arguments()
        self.spawner: Spawner | None = None

    def _build_arguments(self) -> bytes:
        """Return the arguments of bwrap. Files for it to write are passed as descriptors from `_FIRST_FILE_FD` on."""

        def file(path: str, content: bytes) -> list[str]:
            self._files.append(content)
            return ["--file", str(_FIRST_FILE_FD + len(self._files) - 1), path]

        source = launcher.staged if os.geteuid() == 0 else lambda index: self._rootfs.binds[index][0]
        arguments = self._rootfs.arguments(source, file)
        return _words([*_ISOLATION, "--seccomp", str(_SECCOMP_FD), *arguments])

    async def _open(self) -> None:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise UserError(
                "The sandbox level 'bubblewrap' needs the program bwrap, which is not installed: "
                "`apt-get install bubblewrap` (Debian, Ubuntu) or `dnf install bubblewrap` (Fedora)."
            )
        try:
            self.spawner = await Spawner.start(bwrap, [path for path, _ in self._rootfs.binds])
        except SandboxError as error:
            raise self._unavailable(str(error)) from error

    def _usable(self) -> bool:
        return self.spawner is not None and self.spawner.usable

    async def _make(self) -> World:
        if self.spawner is None:
            raise SandboxError("The sandbox was closed.")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = Drain(1 << 14)
        with ExitStack() as theirs_only:

            def give(fd: int) -> int:
                theirs_only.callback(os.close, fd)
                return fd

            theirs_only.callback(theirs.close)
            nowhere = give(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
            arguments = give(memory_file([self._arguments]))
            program = give(memory_file([build_filter()]))
            source = give(boot.source("single", {"directory": WORKING_DIRECTORY}))
            files = [give(memory_file([content])) for content in self._files]
            command = _words(boot.command(_SOURCE_FD, launcher.CONTROL_FD))
            fds = [nowhere, nowhere, give(errors.writer), theirs.fileno(), arguments, program, source, *files]
            number, status = self.spawner.spawn(give(memory_file([command])), fds)
        world = World(ours, _Bwrap(self.spawner, number, status))
        try:
            await world.ready(_SETUP_SECONDS)
        except SandboxError as error:
            await world.dead()
            reason = errors.finish().decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxError(f"{reason or error}.") from error
        finally:
            errors.close()
        return world

    async def _shut(self) -> None:
        if self.spawner is not None:
            await self.spawner.close()
            self.spawner = None


class _Bwrap:
    """The first process of a world, identified by its number at the launcher."""

    def __init__(self, spawner: Spawner, number: int, status: asyncio.Future[int]) -> None:
        self.spawner = spawner
        self._number = number
        self.ended: asyncio.Future[Any] = asyncio.ensure_future(_settled(status))

    def kill(self) -> None:
        if not self.ended.done() and self.spawner.alive:
            self.spawner.kill(self._number)


async def _settled(status: asyncio.Future[int]) -> None:
    with contextlib.suppress(SandboxError):  # when the launcher dies, its sandboxes die with it
        await asyncio.shield(status)


def _words(words: Iterable[str]) -> bytes:
    return b"\0".join(map(os.fsencode, words))
