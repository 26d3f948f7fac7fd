"""A web server of the tests' own, which answers what each test says."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Answer = Callable[[str, socket.socket], None]
"""(path, connection): writes the whole answer."""


@contextmanager
def _serving(answer: Answer) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve_one(connection: socket.socket) -> None:
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (data := connection.recv(65536)):
                        return
                    head += data
                answer(head.split()[1].decode(), connection)
            except OSError:
                return  # the client has had enough

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.fixture
def serving():
    return _serving
