"""Generate load with little CPU time on the server's machine: one process, one thread, plain sockets.

It runs in its own process (`measure`), so its work does not block an event loop under measurement.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any


def request(path: str, body: Any = None, method: str = "POST") -> bytes:
    """Return an HTTP/1.1 request whose connection stays open."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


class Connection:
    """One keep-alive connection with at most one request under way."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._missing = -1

    def send(self, message: bytes) -> None:
        self._received, self._missing = b"", -1
        self.socket.sendall(message)

    def receive(self) -> tuple[int, bytes] | None:
        """Return status and body. Raises `ConnectionError` if the server closes the connection."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return None
        if self._missing < 0:
            lowered = head.lower()
            start = lowered.find(b"content-length:")
            self._missing = int(lowered[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
        return (int(head[9:12]), body) if len(body) >= self._missing else None

    def ask(self, message: bytes) -> tuple[int, bytes]:
        self.send(message)
        while (answer := self.receive()) is None:
            pass
        return answer


def drive(port: int, clients: int, messages: Iterable[bytes], must_contain: bytes) -> tuple[float, list[float]]:
    """Send the messages, each client one after the other. Return total seconds and those of each message.

    Raises `RuntimeError` at the first answer that is not 200 or lacks `must_contain`, so failures do not count as fast.
    """
    waiting = iter(messages)
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        begun: dict[Connection, float] = {}
        start = time.perf_counter()
        for message in (message for _, message in zip(range(clients), waiting, strict=False)):
            connection = Connection(port)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            begun[connection] = time.perf_counter()
            connection.send(message)
        while begun:
            for key, _ in selector.select():
                connection = key.data
                if (answer := connection.receive()) is None:
                    continue
                now = time.perf_counter()
                latencies.append(now - begun.pop(connection))
                if answer[0] != 200 or must_contain not in answer[1]:
                    raise RuntimeError(f"answer {answer[0]}: {answer[1][:500]!r}")
                if (following := next(waiting, None)) is None:
                    selector.unregister(connection.socket)
                    connection.socket.close()
                else:
                    begun[connection] = now
                    connection.send(following)
        return time.perf_counter() - start, latencies


def sessions(port: int, count: int, cells: Sequence[str]) -> list[float]:
    """Open `count` sessions one after the other, run the cells in each and close it. Return seconds of each cell."""
    latencies = []
    connection = Connection(port)
    for _ in range(count):
        status, body = connection.ask(request("/v1/sessions", {}))
        if status not in (200, 201):
            raise RuntimeError(f"no session: {status} {body[:500]!r}")
        path = f"/v1/sessions/{json.loads(body)['id']}"
        for cell in cells:
            message = request(f"{path}/run", {"code": cell})
            start = time.perf_counter()
            status, body = connection.ask(message)
            latencies.append(time.perf_counter() - start)
            if status != 200 or b'"error":null' not in body.replace(b" ", b""):
                raise RuntimeError(f"cell {cell!r}: {status} {body[:500]!r}")
        connection.ask(request(path, method="DELETE"))
    return latencies


def measure(kind: str, port: int, **arguments: Any) -> dict[str, float]:
    """Run `main` in a process of its own. Raises `CalledProcessError` if an answer is wrong."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.sandbox.http_load",
        json.dumps({"kind": kind, "port": port, **arguments}),
    ]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main(kind: str, port: int, **arguments: Any) -> None:
    if kind == "sessions":
        latencies = sessions(port, arguments["count"], arguments["cells"])
        seconds = sum(latencies)
    else:
        body = {"code": arguments["code"], "language": "python", "run_timeout": 30.0}
        messages = [request("/run_code", body)] * arguments["count"]
        seconds, latencies = drive(port, arguments["clients"], messages, b'"Success"')
    latencies.sort()
    result = {
        "count": len(latencies),
        "per_second": len(latencies) / seconds,
        "median_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
