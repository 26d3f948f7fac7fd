"""Messages between a world and its owner, with descriptors, over a SOCK_SEQPACKET unix socket.

Messages of the owner are marshalled, which is fast to read but trusts the writer. Answers of a world are JSON, which
the owner can read safely even if untrusted code has forged them.
"""

from __future__ import annotations

import marshal
import os
from _socket import MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_TRUNC, SCM_RIGHTS, SOL_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing the module typing would cost every execution
    from _socket import socket
    from collections.abc import Iterable, Sequence
    from typing import Any

MAX_MESSAGE = 1 << 16
_PORTABLE = 2
"""Version of marshal that every Python 3 reads."""
_FD_BYTES = 4
_ROOM = 128
"""Space for the header of the descriptors and more than 16 of them."""
_LENGTH_BYTES = 8


def send(channel: socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message to a world, or from a world that never runs untrusted code. Values have exact built-in types.

    Raises `OSError` if the other side is gone.
    """
    channel.sendmsg([marshal.dumps(message, _PORTABLE)], [(SOL_SOCKET, SCM_RIGHTS, _numbers(fds))] if fds else [])


def receive(channel: socket) -> tuple[dict[str, Any], list[int]]:
    """Receive the next message of `send` and its descriptors, all close-on-exec.

    Raises `EOFError` if the other side is gone.
    """
    data, ancillary, flags, _ = channel.recvmsg(MAX_MESSAGE, _ROOM, MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    assert not flags & (MSG_TRUNC | MSG_CTRUNC), "a message that does not fit"
    return marshal.loads(data), _received(ancillary)


def _numbers(fds: Sequence[int]) -> bytes:
    return b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in fds)


def _received(ancillary: list[Any]) -> list[int]:
    return memoryview(ancillary[0][2]).cast("i").tolist() if ancillary else []


def request(channel: socket, message: dict[str, Any], body: Any, fds: Sequence[int] = ()) -> None:
    """Send a request to a world. Only the step reads `body`, not the world itself. Raises the errors of `send`."""
    head = marshal.dumps(message, _PORTABLE)
    data = b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, marshal.dumps(body, _PORTABLE)])
    channel.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, _numbers(fds))] if fds else [])


class Inbox:
    """Receives the requests of a world in a buffer that is wiped, so that the next step cannot find them in memory."""

    def __init__(self) -> None:
        self._buffer = bytearray(MAX_MESSAGE)
        self._view = memoryview(self._buffer)
        self._end = self._body = 0

    def take(self, channel: socket) -> tuple[dict[str, Any], list[int]]:
        """Receive a request and its descriptors, without its body. Raises the errors of `receive`."""
        self._end, ancillary, flags, _ = channel.recvmsg_into([self._buffer], _ROOM, MSG_CMSG_CLOEXEC)
        if not self._end:
            raise EOFError
        assert not flags & (MSG_TRUNC | MSG_CTRUNC), "a message that does not fit"
        self._body = _LENGTH_BYTES + int.from_bytes(self._view[:_LENGTH_BYTES], "little")
        return marshal.loads(self._view[_LENGTH_BYTES : self._body]), _received(ancillary)

    def body(self) -> Any:
        """Return the body of the request; called in the step."""
        return marshal.loads(self._view[self._body : self._end])

    def wipe(self) -> None:
        """Erase the body from memory."""
        self._buffer[self._body : self._end] = bytes(self._end - self._body)


def say(channel: socket, answer: bytes) -> None:
    """Send a JSON answer from a world. Raises `OSError` if the owner is gone."""
    channel.send(answer)


def hear(channel: socket) -> dict[str, Any]:
    """Receive an answer of a world. Descriptors are not accepted.

    Raises `EOFError` if the world is gone, `ValueError` for an invalid answer.
    """
    import json  # not at the top: worlds do not need it

    if not (data := channel.recv(MAX_MESSAGE)):
        raise EOFError
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")
    return answer


def pack(files: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """Pack files into one stream of bytes for a memory file, so that any number of files needs one descriptor."""
    entries = list(files)
    header = marshal.dumps([(path, len(content)) for path, content in entries], _PORTABLE)
    return [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *(content for _, content in entries)]


def unpack(fd: int) -> tuple[list[tuple[str, int]], int]:
    """Return the (path, size) of packed files, and the offset of the content of the first."""
    length = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
    header = b""
    while len(header) < length:
        header += os.pread(fd, length - len(header), _LENGTH_BYTES + len(header))
    return marshal.loads(header), _LENGTH_BYTES + length
