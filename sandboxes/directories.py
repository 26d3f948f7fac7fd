"""`DirectorySandbox`: worlds without namespaces, each a process of its own in a directory of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from typing import Any

from agentloop.errors import SandboxError
from agentloop.sandboxes import boot
from agentloop.sandboxes.pooled import PooledSandbox
from agentloop.sandboxes.rootfs import ENVIRONMENT
from agentloop.sandboxes.worlds import PidFd, World

_SETUP_SECONDS = 30.0
_CLEAR_SECONDS = 5.0


class DirectorySandbox(PooledSandbox):
    """Its subclass says what a step is kept from, in `_plan`."""

    modules: Sequence[str] = ()
    """Modules of agentloop, standard library only, that the plan needs inside."""

    def _plan(self, directory: str) -> dict[str, Any]:
        """Arguments of `inside.single.main`."""
        return {"directory": directory}

    async def _open(self) -> None:
        return

    async def _shut(self) -> None:
        return

    async def _make(self) -> World:
        process, control = await asyncio.to_thread(self._spawn)
        world = World(control, _Process(process))
        await world.ready(_SETUP_SECONDS)
        return world

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        directory = tempfile.mkdtemp(prefix="agentloop-")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = boot.source("single", self._plan(directory), self.modules)
        with theirs:
            try:
                process = subprocess.Popen(
                    boot.command(source, theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[source, theirs.fileno()],
                    start_new_session=True,
                    cwd=directory,
                    env=_environment(directory),
                )
            except OSError as error:
                ours.close()
                raise SandboxError(f"A process could not be started: {error}.") from error
            finally:
                os.close(source)
        return process, ours


class _Process(PidFd):
    """It ends when its socket closes, and clears up; only where that takes too long it is killed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(os.pidfd_open(process.pid))
        self._process = process

    def kill(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_later(_CLEAR_SECONDS, super().kill)

    def _end(self) -> None:
        super()._end()
        self._process.wait()  # at once: it has ended


def _environment(directory: str) -> dict[str, str]:
    own = {"HOME": directory, "TMPDIR": directory, "PYTHONPATH": sysconfig.get_path("purelib")}
    return {**ENVIRONMENT, **own}
