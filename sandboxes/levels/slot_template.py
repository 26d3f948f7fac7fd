"""`SlotTemplate`: the owner's side of the template process, from which all slots are forked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.levels.rootfs import ENVIRONMENT
from agentloop.sandboxes.worlds import boot
from agentloop.sandboxes.worlds.world import PidFd

_START_SECONDS = 120.0
_LINKED = {"LD_BIND_NOW": "1"}
"""Environment that makes the linker resolve all library functions at the start, instead of once in every fork."""


class PreloadError(UserError):
    """A module of `preload` cannot be imported in advance. Another level could not import it, either."""


class SlotTemplate:
    """A running template, made by `start`. It belongs to the event loop that started it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self.alive = True
        self._loop.add_reader(control, self._read)

    @classmethod
    async def start(cls, plan: dict[str, Any], entry: str = "template", modules: Sequence[str] = ()) -> SlotTemplate:
        """Start a template. `boot.source` explains `entry` and `modules`.

        Raises `SandboxError` if it cannot be set up, and `PreloadError`.
        """
        process, control = await asyncio.to_thread(_popen, plan, entry, modules)
        template = cls(process, control)
        try:
            await asyncio.wait([template._ready], timeout=_START_SECONDS)
            if not template._ready.done():
                raise SandboxError("no answer in time")
            template._ready.result()
        except SandboxError as error:
            process.kill()
            output, _ = await asyncio.to_thread(process.communicate)
            await template.close()
            reason = output.decode(errors="replace").strip().rpartition("\n")[2] or str(error)
            raise SandboxError(f"{reason.rstrip('.')}.") from error
        except PreloadError:
            await template.close()
            raise
        except BaseException:
            template._lost()  # it ends when its socket closes
            raise
        return template

    async def make(self, **request: Any) -> tuple[socket.socket, int, int]:
        """Make a slot and return its socket, its pid and its pidfd. Raises `SandboxError`.

        When it is cancelled, the slot has ended before it raises.
        """
        if not self.alive:
            raise SandboxError("The template of the slots died.")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = next(self._numbers)
        try:
            with theirs:
                channel.send(self._control, {**request, "id": number}, [theirs.fileno()])
            future = self._waiting[number] = self._loop.create_future()
            pid, pidfd = await asyncio.shield(future)
        except asyncio.CancelledError:
            ours.close()
            await asyncio.shield(asyncio.create_task(_end(future)))
            raise
        except OSError as error:
            ours.close()
            raise SandboxError(f"The template of the slots accepts no request: {error}.") from error
        except BaseException:
            ours.close()
            raise
        return ours, pid, pidfd

    def _read(self) -> None:
        try:
            message, fds = channel.receive(self._control)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._lost()
            return
        if "id" not in message:
            if error := message.get("error"):
                module = message.get("module")
                self._ready.set_exception(SandboxError(error) if module is None else _not_preloaded(module, error))
            else:
                self._ready.set_result(None)
            return
        future = self._waiting.pop(message["id"])
        if error := message.get("error"):
            future.set_exception(SandboxError(f"A slot could not be made: {error}."))
        else:
            future.set_result((message["pid"], fds[0]))

    def _lost(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._control)
            waiting: list[asyncio.Future[Any]] = [self._ready, *self._waiting.values()]
            for future in waiting:
                if not future.done():
                    future.set_exception(SandboxError("The template of the slots died."))
                    future.exception()
        self._control.close()
        self._waiting.clear()

    async def close(self) -> None:
        """End the template and all its slots."""
        self._lost()
        await asyncio.to_thread(self.process.wait)
        if self.process.stdout is not None:
            self.process.stdout.close()


async def _end(making: asyncio.Future[tuple[int, int]]) -> None:
    """Wait until a slot is made, kill it, and wait until it has ended."""
    with contextlib.suppress(SandboxError):
        slot = PidFd((await making)[1])
        slot.kill()
        await slot.ended


def _not_preloaded(module: str, error: str) -> PreloadError:
    return PreloadError(
        f"The module {module!r} of preload cannot be imported in the sandbox: {error}. Correct its name, install its "
        "package in this Python, or leave it out of preload."
    )


def _popen(plan: dict[str, Any], entry: str, modules: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = boot.source(entry, plan, modules)
    with theirs:
        process = subprocess.Popen(
            boot.command(source, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # a pipe, as the code will have; it also receives errors before the start
            stderr=subprocess.STDOUT,
            pass_fds=[source, theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for the owner, and the template ends with it
            cwd="/",
            env={**ENVIRONMENT, **_LINKED},
        )
        os.close(source)
    ours.setblocking(False)
    return process, ours


def preload_packages(modules: Sequence[str]) -> list[str]:
    """Return the distributions that contain these modules."""
    if not modules:
        return []  # to read the files of all distributions takes longer than to start the sandbox
    from importlib import metadata

    owners = metadata.packages_distributions()
    return [name for module in modules for name in owners.get(module.partition(".")[0], ())]
