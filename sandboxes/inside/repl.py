"""A stateful Python: run cells in one namespace and show the value of a last expression."""

from __future__ import annotations

import _ast
import _signal
import builtins
import gc
import io
import os
import select
import sys
from _socket import socket

from agentloop.sandboxes.inside import channel, displays, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, NoReturn

_ONLY_AST = 0x400
_TOP_LEVEL_AWAIT = 0x2000
_FUTURES = 0x1FF0000
_COROUTINE = 0x80


class Library:
    """Modules of the standard library that sessions need. Other executions do not pay for importing them."""

    def __init__(self) -> None:
        import json
        import linecache
        import traceback
        import warnings

        self.json, self.linecache, self.traceback, self.warnings = json, linecache, traceback, warnings


def serve(channel_fd: int, library: Library) -> int:
    """Run the cells that the socket brings until it closes."""
    main = program.begin()
    sys.argv[:] = [""]
    return Repl(socket(fileno=channel_fd), library, main).serve()


class Repl:
    """Runs cells in one namespace."""

    def __init__(self, control: socket, library: Library, main: dict[str, Any]) -> None:
        self._control = control
        self._library = library
        self._main = main
        self._pid = os.getpid()
        self._waiting = False
        """Whether no cell was taken from the socket since the last one ended."""
        self._running = False
        self._interrupted_early = False
        """Whether the next cell was interrupted before it began."""
        self._futures = 0
        self._loop: Any = None
        self._displays = displays.Displays(library.json.dumps)
        self._nowhere = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        vars(builtins)["display"] = self._displays.display
        vars(builtins)["exit"] = vars(builtins)["quit"] = _exit
        # Figures are shown at the end of the cell.
        library.warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")

    def serve(self) -> int:
        self._announce({"ready": True})
        while True:
            try:
                select.select([self._control], [], [])  # a cell stays in the socket while `_interrupted` looks for it
                self._waiting = False
                request, fds = channel.receive(self._control)
            except (EOFError, OSError):
                return 0
            source = request["code"]
            if source is None:  # too long for a message
                with open(fds.pop(), "rb") as file:
                    file.seek(0)
                    source = file.read()
            self._redirect(fds[0], fds[1])
            self._displays.begin(fds[2], request["limit"])
            self._cell(source, f"<cell {request['cell']}>")
            self._displays.end()
            self._redirect(self._nowhere, self._nowhere, close=False)
            if os.getpid() != self._pid:  # a child that the cell forked ends with the cell
                os._exit(0)
            self._announce({"cell": request["cell"]})

    def _announce(self, message: dict[str, Any]) -> None:
        """Send a message after which the owner may send a cell and interrupt it."""
        _signal.signal(_signal.SIGINT, self._interrupted)  # the last cell may have set another handler
        self._waiting, self._interrupted_early = True, False
        channel.send(self._control, message)

    def _redirect(self, out: int, errors: int, *, close: bool = True) -> None:
        for number, fd in ((1, out), (2, errors)):
            os.dup2(fd, number)
            if close:
                os.close(fd)

    def _cell(self, source: bytes, name: str) -> None:
        try:
            try:
                self._running = True
                if self._interrupted_early:
                    raise KeyboardInterrupt
                self._execute(source, name)
                self._displays.figures()
            finally:
                self._running = False
        except BaseException as error:
            self._failed(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                continue

    def _execute(self, source: bytes, name: str) -> None:
        if b"\0" in source:
            raise SyntaxError("source code cannot contain null bytes")
        text = _decode(source)
        self._library.linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        tree = compile(source, name, "exec", flags=_ONLY_AST | _TOP_LEVEL_AWAIT | self._futures, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        if tree.body:
            self._evaluate(compile(tree, name, "exec", self._futures | _TOP_LEVEL_AWAIT, dont_inherit=True))
        if last is not None:
            expression = _ast.Expression(last.value)
            code = compile(expression, name, "eval", self._futures | _TOP_LEVEL_AWAIT, dont_inherit=True)
            if (value := self._evaluate(code)) is not None:
                self._main["_"] = value
                self._displays.show(value)

    def _evaluate(self, code: types.CodeType) -> Any:
        self._futures |= code.co_flags & _FUTURES
        if not code.co_flags & _COROUTINE:
            return eval(code, self._main)
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(eval(code, self._main))

    def _failed(self, error: BaseException) -> None:
        program.without_own_frames(error)
        try:
            value = str(error)
            lines = "".join(self._library.traceback.format_exception(error)).splitlines()
        except BaseException as second:  # an exception that cannot be formatted
            value, lines = "", [f"{type(error).__name__}: <{type(second).__name__} when it was shown>"]
        self._displays.error(type(error).__name__, value, lines)
        error.__traceback__ = None  # it would keep the objects of its frames alive
        gc.collect(0)

    def _interrupted(self, *_: object) -> None:
        if self._running:
            raise KeyboardInterrupt
        # On a busy machine an interrupt can come before its cell has begun. If no cell is there, its cell has ended.
        if not self._waiting or select.select([self._control], [], [], 0)[0]:
            self._interrupted_early = True


def _decode(source: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(source), encoding="utf-8", errors="replace", newline=None).read()


def _exit(code: object = None) -> NoReturn:
    raise SystemExit(code)
