"""`WorkerProcess`: one process of a package's own interpreter, and its pending requests."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentloop.errors import EnvError

_SCRIPT = Path(__file__).with_name("script.py")
_START_SECONDS = 300.0
"""Seconds in which a new process must import its packages, even on a busy machine."""
_LINE_BYTES = 1 << 28
_LONG = 100_000
"""Bytes of an answer above which parsing would block the event loop for milliseconds."""
_DEATH_SECONDS = 0.2
"""Seconds to wait for the end of a process after its connection has ended, because its exit code explains more."""
_KEPT_BYTES = 4000
"""Bytes of the output of a process to keep for errors."""


@dataclass(slots=True, frozen=True)
class Program:
    """The program of a worker: interpreter, file and options."""

    name: str
    """Name of the environment, for errors."""
    python: str
    """Interpreter that has the package."""
    file: Path
    """File with the class `Worker` (`agentloop.envs.workers.script`)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class."""

    @property
    def key(self) -> str:
        """String that identifies the program. Only equal programs share it."""
        return json.dumps([self.name, self.python, str(self.file), self.options], sort_keys=True)


class WorkerProcess:
    """A process that serves any number of episodes. It belongs to the event loop that starts it."""

    def __init__(self, program: Program) -> None:
        """Start the process. Raises `EnvError` if its interpreter cannot be run."""
        self.program = program
        self.load = 0
        """Number of episodes that the process serves."""
        self.ended: str | None = None
        """Reason why the process has ended; None while it runs."""
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._output = b""
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._launch()
        self._ready = self._loop.create_task(self._greet())

    async def ready(self) -> None:
        """Wait until the package is imported. Raises `EnvError`."""
        await asyncio.shield(self._ready)

    async def ask(self, op: str, *, seconds: float | None, **fields: Any) -> Any:
        """Return the result of a request. Raises `EnvError`.

        A request that takes longer than `seconds` ends the process, because it may hold up all others.
        """
        if self.ended is not None:
            raise EnvError(self.ended)
        assert self._writer is not None, "wait until it is ready"
        self._number += 1
        number, answer = self._number, self._loop.create_future()
        line = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
        self._waiting[number] = answer
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                self._writer.write(line)
                return await answer
        except TimeoutError as error:
            if not timeout.expired():
                raise
            self.end(f"it was killed because a {op} took longer than {seconds:g} s")
            raise EnvError(str(self.ended)) from error
        finally:
            self._waiting.pop(number, None)

    def end(self, reason: str) -> None:
        """Kill the process and its children. Its requests fail with `reason`. A second call does nothing."""
        if self.ended is not None:
            return
        died = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        with suppress(ProcessLookupError):  # before `wait`, which releases the number of the group
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        if died:
            reason = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"
        self._read_output()
        lines = self._output.decode(errors="replace").strip().splitlines()[-8:]
        said = " Its last lines:\n" + "\n".join(lines) if lines else ""
        self.ended = f"the worker of {self.program.name} is gone: {reason}.{said}"
        if not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
            self._loop.remove_reader(self._pipe)
            if self._writer is not None:
                self._writer.close()
            if self._reading is not None:
                self._reading.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(EnvError(self.ended))
        os.close(self._pidfd)
        os.close(self._pipe)

    def _launch(self) -> None:
        self._wire, theirs = socket.socketpair()
        self._pipe, output = os.pipe()
        os.set_blocking(self._pipe, False)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}  # the same tasks in every process
        environment["AGENTLOOP_WORKER"] = secrets.token_hex(8)  # its children end with it
        command = [self.program.python, "-u", str(_SCRIPT)]
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=output, stderr=output, env=environment, start_new_session=True
            )
        except OSError as error:
            self._wire.close()
            os.close(self._pipe)
            raise EnvError(
                f"the interpreter {self.program.python} of {self.program.name} cannot start: {error}"
            ) from error
        finally:
            theirs.close()
            os.close(output)
        # Pipes stay open while any process that the package forked lives, so they do not show when ours ends.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._died)
        self._loop.add_reader(self._pipe, self._read_output)

    async def _greet(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._wire, limit=_LINE_BYTES)
        self._reading = self._loop.create_task(self._read(reader))
        hello = {"file": str(self.program.file), "options": dict(self.program.options)}
        try:
            await self.ask("hello", seconds=_START_SECONDS, **hello)
        except EnvError as error:
            self.end(f"it cannot start: {error}")
            raise EnvError(str(self.ended)) from error

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Give each answer to its request, until the connection ends."""
        try:
            while line := await reader.readline():
                answer = json.loads(line) if len(line) < _LONG else await asyncio.to_thread(json.loads, line)
                waiting = self._waiting.get(answer["id"])
                if waiting is None or waiting.done():
                    continue  # the request was cancelled
                if answer["ok"]:
                    waiting.set_result(answer["result"])
                else:
                    waiting.set_exception(EnvError(f"{self.program.name} raised {answer['error']}"))
        except ConnectionError:
            pass
        except ValueError as error:
            self.end(f"its answer is not a line of JSON: {error}")
        await asyncio.sleep(_DEATH_SECONDS)
        self.end("it closed the wire")

    def _read_output(self) -> None:
        with suppress(BlockingIOError):
            while new := os.read(self._pipe, 1 << 16):
                self._output = (self._output + new)[-_KEPT_BYTES:]
            self._loop.remove_reader(self._pipe)

    def _died(self) -> None:
        self.end("it ended")
