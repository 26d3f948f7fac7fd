"""Messages between a world and its owner: JSON with descriptors, over a SOCK_SEQPACKET unix socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any

MAX_MESSAGE = 1 << 16
MAX_FDS = 16
_HEADER = struct.Struct("<Q")


def send(channel: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Raises `OSError` where the other side is gone."""
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(channel, [data], list(fds))
    else:
        channel.send(data)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and what came with it, all close-on-exec. Raises `EOFError` where the other side is gone."""
    data, fds, flags, _ = socket.recv_fds(channel, MAX_MESSAGE, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError
    assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "a message that does not fit"
    message: dict[str, Any] = json.loads(data)
    return message, fds


def pack(files: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """Files as one stream of bytes, which goes into a memfd: any number of them is one descriptor."""
    entries = list(files)
    # Paths are bytes to the kernel: surrogates stand for those that are no UTF-8.
    header = json.dumps([[path, len(content)] for path, content in entries]).encode()
    return [_HEADER.pack(len(header)), header, *(content for _, content in entries)]


def unpack(fd: int) -> tuple[list[tuple[str, int]], int]:
    """The (path, size) of packed files, and where the content of the first begins."""
    (length,) = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
    header = b""
    while len(header) < length:
        header += os.pread(fd, length - len(header), _HEADER.size + len(header))
    return [(path, size) for path, size in json.loads(header)], _HEADER.size + length
