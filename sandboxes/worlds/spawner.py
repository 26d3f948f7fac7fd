"""`Spawner`: the owner's side of the launcher process. Nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from agentloop.errors import SandboxError
from agentloop.sandboxes.worlds import launcher

_READY_SECONDS = 30.0


class Spawner:
    """A running launcher, made by `start`. It belongs to the event loop that started it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(launcher.READY + 1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._received = b""
        self.alive = True
        self._loop.add_reader(control, self._read)

    @classmethod
    async def start(cls, bwrap: str, paths: Sequence[str]) -> Spawner:
        """Start the launcher. `paths` stay readable for it if it starts as root and gives that up.

        Raises `SandboxError` if it cannot be started.
        """
        process, control = await asyncio.to_thread(_popen, bwrap, paths)
        spawner = cls(process, control)
        ready = spawner._waiting[launcher.READY] = spawner._loop.create_future()
        try:
            await asyncio.wait([ready], timeout=_READY_SECONDS)
            if not ready.done():
                raise SandboxError("no answer")
            ready.result()
        except SandboxError as error:
            process.kill()
            _, stderr = await asyncio.to_thread(process.communicate)
            await spawner.close()
            reason = stderr.decode(errors="replace").strip().rpartition("\n")[2] or "no answer"
            raise SandboxError(f"the process that starts sandboxes could not be set up ({reason}).") from error
        except BaseException:
            spawner._lost()  # it ends when its socket closes
            raise
        return spawner

    @property
    def usable(self) -> bool:
        return self.alive and self._loop is asyncio.get_running_loop()

    def spawn(self, command: int, fds: Sequence[int]) -> tuple[int, asyncio.Future[int]]:
        """Start bwrap with `fds` as its descriptors 0, 1, 2, ...; return its number and a future of its exit status.

        The file `command` contains the words of the command to run inside, separated by NUL. The future raises
        `SandboxError` if bwrap could not be started or the launcher died.
        """
        number = next(self._numbers)
        try:
            socket.send_fds(self._control, [launcher.REQUEST.pack(launcher.START, number)], [command, *fds])
        except OSError as error:
            self._lost()
            raise SandboxError(f"The process that starts sandboxes accepts no request: {error}.") from error
        status = self._waiting[number] = self._loop.create_future()
        return number, status

    def kill(self, number: int) -> None:
        """End an execution with all its processes. Its future resolves when they have ended."""
        if self.alive:
            try:
                self._control.send(launcher.REQUEST.pack(launcher.KILL, number))
            except OSError:
                self._lost()

    def _read(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        data = self._received + data
        whole = len(data) - len(data) % launcher.REPLY.size
        self._received = data[whole:]
        for number, status in launcher.REPLY.iter_unpack(data[:whole]):
            future = self._waiting.pop(number, None)
            if future is None or future.done():
                continue
            if status < 0:
                future.set_exception(SandboxError(f"bubblewrap could not be started: {os.strerror(-status)}."))
            else:
                future.set_result(status)

    def _lost(self) -> None:
        self._detach()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(SandboxError("The process that starts sandboxes died."))
                future.exception()  # mark the exception as retrieved, because no caller may be waiting

    def _detach(self) -> None:
        if self.alive:
            self.alive = False
            self._loop.remove_reader(self._control)
            self._control.close()

    async def close(self) -> None:
        """End the launcher, and with it every running sandbox."""
        self._lost()
        await asyncio.to_thread(self.process.wait)
        if self.process.stderr is not None:
            self.process.stderr.close()


def _popen(bwrap: str, paths: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        command = [sys.executable, "-I", "-S", "-B", launcher.__file__, str(theirs.fileno()), bwrap, json.dumps(paths)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for the owner; the launcher ends when the socket closes
            env={},
        )
    ours.setblocking(False)
    return process, ours
