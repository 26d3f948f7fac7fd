"""The listening socket of a server."""

from __future__ import annotations

import errno
import socket

from agentloop.errors import UserError

BACKLOG = 2048
"""Number of connections that may wait to be accepted."""


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises `OSError`.

    Its connections send at once (TCP_NODELAY). Otherwise an answer of two packets waits 40 ms for the client's delayed
    acknowledgement; asyncio does not prevent this for the sockets of `create_server`.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
    return listener


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises `UserError` if that is not possible."""
    try:
        return open_listener(host, port)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        reason = "another program listens there" if is_taken else error.strerror or str(error)
        raise UserError(
            f"Cannot listen on {host}, port {port}: {reason}. Choose another with --host and --port; port 0 "
            "takes any that is free."
        ) from error


def address_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
