"""`DirectorySandbox`: worlds without namespaces, each a process in its own directory."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from agentloop.errors import SandboxError
from agentloop.sandboxes.inside.isolation import cleanup
from agentloop.sandboxes.levels.rootfs import ENVIRONMENT
from agentloop.sandboxes.worlds import boot
from agentloop.sandboxes.worlds.pooled import PooledSandbox
from agentloop.sandboxes.worlds.world import PidFd, World

_logger = logging.getLogger(__name__)
_SETUP_SECONDS = 30.0
_CLEAR_SECONDS = 5.0


class DirectorySandbox(PooledSandbox):
    """Base of levels without namespaces. A subclass restricts its steps in `_plan`."""

    modules: Sequence[str] = ()
    """Further modules of agentloop that the plan needs inside. They import only the standard library."""

    def _plan(self, directory: str) -> dict[str, Any]:
        """Return the arguments of `inside.single.main`."""
        return {"directory": directory}

    async def _open(self) -> None:
        return

    async def _shut(self) -> None:
        return

    async def _make(self) -> World:
        process, control, directory = await asyncio.to_thread(self._spawn)
        world = World(control, _Process(process, directory))
        await world.ready(_SETUP_SECONDS)
        return world

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket, str]:
        """Start the first process of a world. Raises `SandboxError`, for example if the disk is full."""
        try:
            directory = tempfile.mkdtemp(prefix="agentloop-")
            try:
                return *self._start_in(directory), directory
            except BaseException:
                os.rmdir(directory)
                raise
        except OSError as error:
            raise SandboxError(f"A process could not be started in a new directory: {error}.") from error

    def _start_in(self, directory: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        with ExitStack() as theirs_only, ExitStack() as on_failure:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(ours.close)
            theirs_only.callback(theirs.close)
            source = boot.source("single", self._plan(directory), self.modules)
            theirs_only.callback(os.close, source)
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
            on_failure.pop_all()
            return process, ours


class _Process(PidFd):
    """The first process of a world, which ends and cleans up when its socket closes.

    If that takes too long, it is killed and its owner cleans up.
    """

    def __init__(self, process: subprocess.Popen[bytes], directory: str) -> None:
        super().__init__(os.pidfd_open(process.pid))
        self._process = process
        self._directory = directory

    def kill(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_later(_CLEAR_SECONDS, super().kill)

    def _end(self) -> None:
        super()._end()
        if self._process.wait() < 0:  # returns at once: the process has ended
            self._loop.run_in_executor(None, _clear, self._directory)


def _clear(directory: str) -> None:
    try:
        cleanup.remove_directory(directory)
    except FileNotFoundError:
        pass  # it had just finished
    except OSError as error:
        _logger.warning("A sandbox directory could not be removed: %s", error)


def _environment(directory: str) -> dict[str, str]:
    own = {"HOME": directory, "TMPDIR": directory, "PYTHONPATH": sysconfig.get_path("purelib")}
    return {**ENVIRONMENT, **own}
