"""Script that a package's own interpreter runs: it serves the class `Worker` of a file. It does not use agentloop.

The file may import anything that its interpreter has, and defines one class:

    class Worker:
        def __init__(self, **options): ...        # options of the environment; put slow imports here
        def rows(self, **arguments): ...          # yield the rows of a dataset, JSON objects
        def start(self, episode, arguments): ...  # begin the episode of this name; return a JSON value
        def step(self, episode, arguments): ...   # make the next step; return a JSON value
        def close(self, episode): ...             # release the episode; called once after each `start`, failed or not

Methods that an adapter does not need may be missing. Calls of `async` methods run concurrently. Calls of plain methods
run one after another in the main thread. An exception in a call, `SystemExit` included, fails only its episode. If the
process dies, all its episodes fail.

The connection is a socket at file descriptor 0, with one JSON object per line:

    {"id": 1, "op": "hello", "file": "worker.py", "options": {}}         -> {"id": 1, "ok": true, "result": <pid>}
    {"id": 2, "op": "rows", "episode": "a", "arguments": {}}             -> ... "result": {"rows": [...], "more": true}
    {"id": 3, "op": "start", "episode": "b", "arguments": {"seed": 1}}   -> ... "result": <the result of start>
    {"id": 4, "op": "step", "episode": "b", "arguments": {}}             -> {"id": 4, "ok": false, "error": "..."}
    {"id": 5, "op": "close", "episode": "b"}                             -> ... "result": null

The script first moves the connection away from descriptor 0, so that no library reads from it. Descriptors 1 and 2 are
one pipe, whose last lines are part of the error if the process dies. When this process ends, all processes that the
package started are killed. When the other end of the connection closes, this process is killed, too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_ROWS_SECONDS = 0.2
"""Seconds in which rows are collected for one answer."""
_LINE_BYTES = 1 << 28
_MARK = "AGENTLOOP_WORKER"
"""Environment variable that marks all processes that a worker started, even those in other sessions."""


def guard(wire: socket.socket) -> None:
    """Fork a process that kills this one and its children when this one ends or the connection closes."""
    worker = os.getpid()
    ended = os.pidfd_open(worker)
    if os.fork():
        os.close(ended)
        return
    os.setsid()  # the client kills the group of the worker, but would miss processes that left the group
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(wire, 0)  # only the hang-up, which is always reported
    if ended not in dict(poll.poll()):
        os.killpg(worker, signal.SIGKILL)
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with suppress(OSError), open(f"{folder.path}/environ", "rb") as variables:
                if mark in variables.read().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
    os._exit(0)


def load(path: str) -> Any:
    """Return the class `Worker` of a file."""
    spec = importlib.util.spec_from_file_location("agentloop_worker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Worker


def described(error: BaseException) -> str:
    """Return the type, the message and the location of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


class Server:
    """Answers the requests of the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.pid = os.getpid()
        self.writer = writer
        self.worker: Any = None
        self.iterators: dict[str, Iterator[Any]] = {}
        self.tasks: set[asyncio.Future[None]] = set()

    async def answer(self, request: dict[str, Any]) -> None:
        """Answer one request."""
        answer = {"id": request["id"], "ok": True}
        try:
            result = self.call(request)
            if inspect.isawaitable(result):
                result = await result
            line = json.dumps(dict(answer, result=result))
        except (Exception, SystemExit) as error:
            line = json.dumps(dict(answer, ok=False, error=described(error)))
        finally:
            if os.getpid() != self.pid:
                os._exit(0)  # a process that the package forked returned here, and must not answer
        self.writer.write(line.encode() + b"\n")

    def call(self, request: dict[str, Any]) -> Any:
        """Return the result of a request, or an awaitable of it."""
        op = request["op"]
        if op == "hello":
            self.worker = load(request["file"])(**request["options"])
            return self.pid
        if op == "rows":
            return self.rows(request["episode"], request["arguments"])
        if op == "close":
            close = getattr(self.worker, "close", None)
            return close(request["episode"]) if close is not None else None
        assert op in ("start", "step"), op
        return getattr(self.worker, op)(request["episode"], request["arguments"])

    def rows(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the next rows of an iterator."""
        if name not in self.iterators:
            self.iterators[name] = iter(self.worker.rows(**arguments))
        rows, until = [], time.monotonic() + _ROWS_SECONDS
        for row in self.iterators[name]:
            rows.append(row)
            if time.monotonic() > until:
                return {"rows": rows, "more": True}
        del self.iterators[name]
        return {"rows": rows, "more": False}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer requests until the connection ends."""
        while True:
            line = await reader.readline()
            if not line.endswith(b"\n"):
                return
            request = json.loads(line)
            method = getattr(self.worker, request["op"], None)
            if not inspect.iscoroutinefunction(method):
                await self.answer(request)
                continue
            task = asyncio.ensure_future(self.answer(request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)


async def main() -> None:
    """Move the connection away from the standard descriptors, and serve."""
    wire = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    guard(wire)
    reader, writer = await asyncio.open_unix_connection(sock=wire, limit=_LINE_BYTES)
    await Server(writer).serve(reader)


if __name__ == "__main__":
    del sys.path[0]  # keep the package from importing the files in this folder
    asyncio.run(main())
