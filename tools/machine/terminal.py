"""`Terminal`: the keyboard and the screen of a terminal in the box of the episode."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Annotated

from agentloop.boxes.interface.box import Box, BoxError, Process, ProgramEndedError
from agentloop.errors import FailureKind, UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.machine.arguments import encoded
from agentloop.tools.machine.episode_box import episode_box_of
from agentloop.tools.machine.screen import Screen, load_pyte
from agentloop.types.limits import StopReason

LINES, COLUMNS = 40, 120
"""Lines and columns of a terminal."""
_QUIET_SECONDS = 0.3
"""Seconds after which a screen that does not change counts as finished."""
_POLL_SECONDS = 0.05
_KEY = re.compile(r"<([A-Za-z]+|C-[a-z\\\[\]])>")
_KEYS = {
    "enter": "\r",
    "tab": "\t",
    "esc": "\x1b",
    "backspace": "\x7f",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "pageup": "\x1b[5~",
    "pagedown": "\x1b[6~",
    "delete": "\x1b[3~",
}


class Terminal(Tool):
    """Type into a terminal and return its screen afterwards. A newline presses Enter. <C-c>, <C-d>, <Esc>, <Tab>,
    <Up>, <Down>, <Left>, <Right>, <Home>, <End>, <PageUp>, <PageDown>, <Delete> and <Backspace> press keys.
    Full-screen programs such as vim and less work.
    """  # noqa: D205 - the description that models read

    needs_box = True

    def __init__(self, *, max_wait: float = 60.0) -> None:
        """Let a call wait for at most `max_wait` seconds."""
        if max_wait <= 0:
            raise UserError("The tool terminal needs a `max_wait` above 0.")
        self._max_wait = max_wait
        self.timeout = max_wait + 30.0

    async def start(self) -> None:
        load_pyte()

    async def open(self, ctx: ToolContext) -> _Session:
        machine = episode_box_of(ctx)
        return await _Session.start(machine.box, machine.user)

    async def close(self, ctx: ToolContext) -> None:
        await ctx.state.close()

    async def call(
        self,
        ctx: ToolContext,
        keys: Annotated[str, "What to type; empty only waits"],
        wait: Annotated[float, "Maximum seconds to wait until the screen stops changing"] = 5.0,
    ) -> ToolResult:
        session, machine = ctx.state, episode_box_of(ctx)
        try:
            await session.type(keys)
            seconds = max(0.0, min(wait, self._max_wait, ctx.seconds_left, machine.seconds_left))
            screen = await session.screen_after(seconds)
        except BoxError as error:
            return ToolResult(str(error), is_error=True, failure=FailureKind.ENV, stop=StopReason.ENV_ERROR)
        return ToolResult(screen, stop=StopReason.MAX_SECONDS if machine.seconds_left <= 0 else False)


def pressed(keys: str) -> str:
    """Return the characters that a keyboard sends for text with named keys. Unknown names are plain text."""

    def code(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("C-"):
            return chr(ord(name[2].upper()) & 0x1F)
        return _KEYS.get(name.lower(), match[0])

    return _KEY.sub(code, keys.replace("\r\n", "\n").replace("\n", "\r"))


class _Session:
    """A shell on a terminal in the box, and its screen, which is drawn as output arrives."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._screen = Screen(LINES, COLUMNS)
        self._changed = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, box: Box, user: str | None) -> _Session:
        command = ["/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash -i; fi; exec sh -i"]
        return cls(await box.spawn(command, user=user, tty=True))

    async def _read(self) -> None:
        while data := await self._process.read():
            self._screen.feed(data)
            self._changed = asyncio.get_running_loop().time()

    async def type(self, keys: str) -> None:
        self._changed = asyncio.get_running_loop().time()
        if keys and not self._reading.done():
            try:
                await self._process.write(encoded(pressed(keys), "keys"))
            except ProgramEndedError:
                self._reading.cancel()  # an engine may keep the output of an ended shell open

    async def screen_after(self, seconds: float) -> str:
        """Wait until the screen stops changing, at most `seconds`, and return it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < min(end, self._changed + _QUIET_SECONDS) and not self._reading.done():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        shown = self._screen.text()
        if self._reading.done():
            await self._process.wait()  # raises if the box itself has ended
            return f"{shown}\n[the shell has ended]".lstrip("\n")
        return shown

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        await self._process.kill()
