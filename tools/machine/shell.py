"""`Shell`: a shell in a box that runs one command after the other and keeps its state."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from dataclasses import dataclass
from typing import Any

from agentloop.boxes.interface.box import Box, Process, ProgramEndedError
from agentloop.tools.machine.arguments import encoded

_AFTER_INTERRUPT = 3.0
"""Seconds in which an interrupted command must end."""
_QUIET_SECONDS = 1.0
"""Seconds without output after which to ask if the shell has ended."""
_SETUP = "trap 'break 99 2>/dev/null' INT\n"
"""Command that makes the shell survive an interrupt and leave its running loop."""


@dataclass(slots=True, frozen=True)
class ShellResult:
    """The result of a command."""

    output: str
    """stdout and stderr, interleaved. Output above the limit loses its middle."""
    return_code: int | None
    """Exit code; None if the command did not end by itself."""
    timed_out: bool = False
    shell_ended: bool = False
    """Whether the shell has ended. The next command then starts a new one."""
    shell_was_lost: bool = False
    """Whether the shell of the last command had ended since, so that this command ran in a new one."""


class Shell:
    """A shell that starts with its first command. If it has ended, the next command starts it again."""

    def __init__(self, box: Box, user: str | None = None, *, output_bytes: int = 32768) -> None:
        self._box = box
        self._user = user
        self._output_bytes = output_bytes
        self._process: Process | None = None
        self._reading: asyncio.Future[bytes] | None = None
        self._early = b""
        """Output of background programs that came after the end of the last command."""

    async def run(self, command: str, seconds: float) -> ShellResult:
        """Run a command. If it takes longer than `seconds`, interrupt it; if it ignores that, kill it and the shell."""
        mark = secrets.token_hex(12)
        # /dev/null keeps a command from reading the next one. `command` keeps sh alive after a syntax error. After the
        # command, sh undoes all redirections of the group and with them an `exec >file`, which would hide the mark.
        redirected = "</dev/null 7>&1 >&7 2>&1 7>&-"
        text = f"{{ command eval {shlex.quote(command)}\n}} {redirected}\nprintf '\\n{mark} %d\\n' $? 2>&1\n"
        data = encoded(text, "command")
        process = await self._start()
        was_lost = False
        try:
            await process.write(data)
        except ProgramEndedError:
            was_lost = True
            await self.close()
            process = await self._start()
            await process.write(data)
        output = _Output(mark.encode(), self._output_bytes)
        output.add(self._early)
        if await self._read(process, output, seconds):
            return self._result(output, timed_out=False, shell_was_lost=was_lost)
        await process.interrupt()
        if not await self._read(process, output, _AFTER_INTERRUPT):
            await self.close()
        return self._result(output, timed_out=True, shell_was_lost=was_lost)

    async def close(self) -> None:
        """Kill the shell and all commands in it."""
        process, self._process = self._process, None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if process is not None:
            await process.kill()

    async def _start(self) -> Process:
        if self._process is None:
            self._process = await self._box.spawn(
                ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash --noprofile --norc; fi; exec sh"],
                user=self._user,
            )
            await self._process.write(_SETUP.encode())
        return self._process

    async def _read(self, process: Process, output: _Output, seconds: float) -> bool:
        """Read until the command ends. Return False if it does not end within `seconds`."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                while not output.is_complete:
                    data = await self._output(process)
                    if not data:
                        await process.wait()  # raises if the box itself has ended
                        await self.close()
                        return True
                    output.add(data)
        except TimeoutError:
            return False
        return True

    async def _output(self, process: Process) -> bytes:
        """Return the next output; empty if the shell has ended, even if programs that it started hold its output.

        A cancelled call loses nothing: the next one waits for the same output.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(process.read())
        reading = self._reading
        await asyncio.wait({reading}, timeout=_QUIET_SECONDS)
        if not reading.done():
            ending = asyncio.ensure_future(process.wait())
            waits: list[asyncio.Future[Any]] = [reading, ending]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ending.cancel()
        if not reading.done():
            return b""
        self._reading = None
        return reading.result()

    def _result(self, output: _Output, *, timed_out: bool, shell_was_lost: bool) -> ShellResult:
        self._early = output.after
        code = None if timed_out else output.return_code
        return ShellResult(output.text(), code, timed_out, self._process is None, shell_was_lost)


class _Output:
    """The first and last bytes that a command has printed, and its exit status after the mark."""

    def __init__(self, mark: bytes, limit: int) -> None:
        self._mark = b"\n" + mark + b" "
        self._limit = limit
        self._head = b""
        self._tail = b""
        self._dropped = 0
        self.after = b""
        """Output after the mark: a background program wrote it."""
        self.return_code: int | None = None
        self.is_complete = False

    def add(self, data: bytes) -> None:
        self._tail += data
        before, _, rest = self._tail.partition(self._mark)
        code, newline, after = rest.partition(b"\n")
        if newline:
            self._tail, self.return_code, self.after, self.is_complete = before, int(code), after, True
        room = self._limit // 2 - len(self._head)
        keep = 0 if self.is_complete else len(self._mark) + 8
        if room > 0 and len(self._tail) > keep:
            moved = min(room, len(self._tail) - keep)
            self._head, self._tail = self._head + self._tail[:moved], self._tail[moved:]
        if (surplus := len(self._tail) - self._limit // 2 - keep) > 0:
            self._tail = self._tail[surplus:]
            self._dropped += surplus

    def text(self) -> str:
        middle = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        return (self._head + middle + self._tail).decode(errors="replace")
