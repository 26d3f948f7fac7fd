"""`Connection`: the owner's side of the socket to the first process of a box. Nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import itertools
import marshal
import os
import socket
from collections.abc import Sequence
from typing import Any

from agentloop.boxes.interface.box import BoxError, BoxLostError
from agentloop.sandboxes.inside import channel
from agentloop.sandboxes.worlds.streams import memory_file
from agentloop.sandboxes.worlds.world import PidFd


class Connection:
    """Sends requests to the first process of a box and receives how each ended."""

    def __init__(self, name: str, control: socket.socket, process: PidFd) -> None:
        self._name = name
        self._control = control
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self.is_alive = True
        control.setblocking(False)
        self._loop.add_reader(control, self._read)

    def request(self, op: str, fds: Sequence[int] = (), **fields: Any) -> tuple[int, asyncio.Future[int]]:
        """Send a request; return its number and a future of its exit status. Raises `BoxLostError`."""
        number = next(self._numbers)
        future: asyncio.Future[int] = self._loop.create_future()
        if not self.is_alive:
            raise self._lost_error()
        try:
            channel.send(self._control, {"id": number, "op": op, **fields}, fds)
        except OSError as error:
            raise self._lost_error() from error
        self._waiting[number] = future
        return number, future

    def lend(self, fd: int) -> None:
        """Send a descriptor to a box that waits for one before it starts. Raises `BoxLostError`."""
        try:
            channel.send(self._control, {}, [fd])
        except OSError as error:
            raise self._lost_error() from error

    def run(self, request: dict[str, Any], streams: Sequence[int]) -> tuple[int, asyncio.Future[int]]:
        """Start a command with these stdin, stdout and stderr, as `request` does."""
        data = marshal.dumps(request, 2)
        body = memory_file([data])  # a command may be longer than a message
        try:
            return self.request("run", [body, *streams], bytes=len(data))
        finally:
            os.close(body)

    def tell(self, op: str, target: int) -> None:
        """Send a request about a running command, which has no answer."""
        _, future = self.request(op, target=target)
        self._waiting = {number: each for number, each in self._waiting.items() if each is not future}

    def _read(self) -> None:
        try:
            answer = channel.hear(self._control)
        except (BlockingIOError, ConnectionResetError):
            return  # Linux reports that the other side left requests unread before its last answers
        except (EOFError, OSError, ValueError):
            self.close()
            return
        future = self._waiting.pop(answer.get("id", 0), None)
        if future is None or future.done():
            return
        if "error" in answer:
            future.set_exception(BoxError(str(answer["error"])))
        else:
            future.set_result(int(answer["code"]))

    def close(self) -> None:
        """End the box: its first process ends when the socket closes, and is killed if it hangs."""
        if not self.is_alive:
            return
        self.is_alive = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._control)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._lost_error())
                    future.exception()
        self._waiting.clear()
        self._control.close()
        self.process.kill()

    def _lost_error(self) -> BoxLostError:
        return BoxLostError(f"The box {self._name} has ended, and its files are lost.")
