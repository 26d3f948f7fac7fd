"""Messages between a world and its owner, with descriptors, over a SOCK_SEQPACKET unix socket.

What the owner says is marshalled, which is quick to read and trusts who wrote it. What a world answers is JSON: code of
others may have run there, and the owner must be able to read whatever it says.
"""

from __future__ import annotations

import marshal
import os
from _socket import MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_TRUNC, SCM_RIGHTS, SOL_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:  # the module typing would be part of every execution
    from _socket import socket
    from collections.abc import Iterable, Sequence
    from typing import Any

MAX_MESSAGE = 1 << 16
_PORTABLE = 2
"""A version of marshal that every Python 3 reads."""
_FD_BYTES = 4
_ROOM = 128
"""For the header of the descriptors and 16 of them, and more."""
_LENGTH_BYTES = 8


def send(channel: socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """To a world, or from one where no code of others ever runs. Values are of the built-in types themselves.

    Raises `OSError` where the other side is gone.
    """
    channel.sendmsg([marshal.dumps(message, _PORTABLE)], [(SOL_SOCKET, SCM_RIGHTS, _numbers(fds))] if fds else [])


def receive(channel: socket) -> tuple[dict[str, Any], list[int]]:
    """The next of what `send` has sent and what came with it, all close-on-exec. Raises `EOFError` where the other side
    is gone."""
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
    """To a world. The body is for the step alone: whoever takes the message does not look at it. Raises as `send`."""
    head = marshal.dumps(message, _PORTABLE)
    data = b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, marshal.dumps(body, _PORTABLE)])
    channel.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, _numbers(fds))] if fds else [])


class Inbox:
    """Where a world takes requests: what is in one must not lie around in its memory, which the next step gets."""

    def __init__(self) -> None:
        self._buffer = bytearray(MAX_MESSAGE)
        self._view = memoryview(self._buffer)
        self._end = self._body = 0

    def take(self, channel: socket) -> tuple[dict[str, Any], list[int]]:
        """The next request and what came with it, without its body. Raises as `receive`."""
        self._end, ancillary, flags, _ = channel.recvmsg_into([self._buffer], _ROOM, MSG_CMSG_CLOEXEC)
        if not self._end:
            raise EOFError
        assert not flags & (MSG_TRUNC | MSG_CTRUNC), "a message that does not fit"
        self._body = _LENGTH_BYTES + int.from_bytes(self._view[:_LENGTH_BYTES], "little")
        return marshal.loads(self._view[_LENGTH_BYTES : self._body]), _received(ancillary)

    def body(self) -> Any:
        """In the step."""
        return marshal.loads(self._view[self._body : self._end])

    def wipe(self) -> None:
        """Forget the body."""
        self._buffer[self._body : self._end] = bytes(self._end - self._body)


def say(channel: socket, answer: bytes) -> None:
    """From a world, JSON. Raises `OSError` where the owner is gone."""
    channel.send(answer)


def hear(channel: socket) -> dict[str, Any]:
    """What a world says; descriptors that it may send are not taken. Raises `EOFError` where it is gone, `ValueError`
    where it makes no sense."""
    import json  # brings more than worlds ever need

    if not (data := channel.recv(MAX_MESSAGE)):
        raise EOFError
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("an answer that is no object")
    return answer


def pack(files: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """Files as one stream of bytes, which goes into a memfd: any number of them is one descriptor."""
    entries = list(files)
    header = marshal.dumps([(path, len(content)) for path, content in entries], _PORTABLE)
    return [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *(content for _, content in entries)]


def unpack(fd: int) -> tuple[list[tuple[str, int]], int]:
    """The (path, size) of packed files, and where the content of the first begins."""
    length = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
    header = b""
    while len(header) < length:
        header += os.pread(fd, length - len(header), _LENGTH_BYTES + len(header))
    return marshal.loads(header), _LENGTH_BYTES + length
