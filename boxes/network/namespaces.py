"""Listen inside another network namespace."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor

from agentloop.boxes.interface.box import BoxError
from agentloop.sandboxes.inside.isolation import libc


def listen_in(pid: int, port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1:port of the network of a process. Blocks.

    Raises `BoxError` without the rights to enter that network, or if the port is taken.
    """

    def listen() -> socket.socket:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc.enter(namespace, libc.CLONE_NEWNET)
        finally:
            os.close(namespace)
        return listening_socket(port)

    # Use a separate thread, because it stays in that network until it ends.
    with ThreadPoolExecutor(1, thread_name_prefix="agentloop-network") as thread:
        try:
            return thread.submit(listen).result()
        except OSError as error:
            raise BoxError(
                f"Cannot listen in the network of a box ({error}): this needs root on the machine that runs the box."
            ) from error


def listening_socket(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1. Raises `OSError`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
