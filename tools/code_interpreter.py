"""`CodeInterpreter`: the model writes Python, a sandbox runs it, here or in daemons."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from agentloop import sandboxes
from agentloop.errors import SandboxError, ToolError, UserError
from agentloop.sandboxes import (
    CellResult,
    Execution,
    ExecutionResult,
    Sandbox,
    SandboxBusyError,
    Session,
    SessionSettings,
)
from agentloop.tools import code_feedback
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.types.messages import Content

_logger = logging.getLogger(__name__)

_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(?P<code>.*?)\n?```\s*", re.DOTALL | re.IGNORECASE)
_QUEUE_SECONDS = 600.0
"""What a call may take on top of the code's time, which the sandbox itself bounds: many episodes share few slots."""
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to get a session where all are taken: from the first, doubling, to the last."""
_STATEFUL = (
    "Run Python code as the next cell of a notebook and return what it prints; the value of a last line that is an "
    "expression is printed too. Variables, imports and files are kept for the next call."
)


class CodeInterpreter(Tool):
    """Run Python code in a fresh process and return what it prints; the value of a last line that is an expression is
    printed too. Nothing is kept between calls."""

    def __init__(
        self,
        sandbox: str | Sequence[str] = "local",
        *,
        stateful: bool = False,
        timeout: float = 10.0,
        memory_mb: int = 1024,
        max_output_bytes: int = 32768,
        max_traceback_lines: int = 12,
        max_images: int = 0,
        **sandbox_options: Any,
    ) -> None:
        """`sandbox`: "local" for the default isolation level of this machine, the name of a level, or the address of
        sandbox daemons (`http://a:8080,http://b:8080`); `sandbox_options` are its own (`packages=["numpy"]`, `token=`,
        ...). All trajectories share it. `stateful`: one notebook a trajectory, in place of a fresh process a call.
        `timeout`: seconds the code may run. `max_images`: pictures that one call of a notebook may show; 0 for models
        that see none.

        Raises `UserError` for an unknown level or option.
        """
        self.sandbox = sandbox_at(sandbox, sandbox_options)
        self.timeout = timeout + _QUEUE_SECONDS
        # Both made here, too, because they raise for limits that cannot be.
        self._execution = Execution(
            code="", timeout=timeout, memory_mb=memory_mb, output_bytes=max_output_bytes, echo=True
        )
        self._settings = SessionSettings(memory_mb=memory_mb, output_bytes=max_output_bytes)
        self._stateful = stateful
        self._max_traceback_lines = max_traceback_lines
        self._max_images = max_images
        if stateful:
            self.description = _STATEFUL

    async def start(self) -> None:
        await self.sandbox.start()
        # What the sandbox does not do, or not with these limits, is an error now and not in every trajectory.
        if self._stateful:
            with suppress(SandboxBusyError):  # it has sessions; others have them all now
                await (await self.sandbox.session(self._settings)).close()
        else:
            await self.sandbox.run(self._execution)

    async def shutdown(self) -> None:
        await self.sandbox.close()

    async def open(self, ctx: ToolContext) -> _Notebook | None:
        return _Notebook(self.sandbox, self._settings) if self._stateful else None

    async def close(self, ctx: ToolContext) -> None:
        if self._stateful:
            await ctx.state.close()

    async def call(self, ctx: ToolContext, code: Annotated[str, "Python code to run"]) -> ToolResult:
        code = strip_fence(code)
        return await (self._run_cell(ctx, code) if self._stateful else self._run(ctx, code))

    async def _run(self, ctx: ToolContext, code: str) -> ToolResult:
        seconds = self._seconds(ctx)
        result = await self.sandbox.run(replace(self._execution, code=code, timeout=seconds))
        content = code_feedback.of_execution(result, seconds, self._max_traceback_lines)
        return _result(content, result)

    async def _run_cell(self, ctx: ToolContext, code: str) -> ToolResult:
        notebook: _Notebook = ctx.state
        async with notebook.lock:  # calls of one turn come at once: they run in their order
            await notebook.open()
            seconds = self._seconds(ctx)
            result = await notebook.run(code, seconds)
        content = await code_feedback.of_cell(
            result,
            seconds,
            max_output_bytes=self._execution.output_bytes,
            max_traceback_lines=self._max_traceback_lines,
            max_images=self._max_images,
        )
        return _result(content, result)

    def _seconds(self, ctx: ToolContext) -> float:
        """What the code may take."""
        return max(min(self._execution.timeout, ctx.seconds_left), 0.001)


class _Notebook:
    """The session of one trajectory: opened by its first cell, and again by the next one after it has ended."""

    def __init__(self, sandbox: Sandbox, settings: SessionSettings) -> None:
        self.lock = asyncio.Lock()
        self._sandbox = sandbox
        self._settings = settings
        self._session: Session | None = None

    async def open(self) -> None:
        """Have a session. Where all are taken this waits until another trajectory ends, or the call's time is over."""
        pause = _FIRST_PAUSE
        while self._session is None:
            try:
                self._session = await self._sandbox.session(self._settings)
            except SandboxBusyError as error:
                if pause == _FIRST_PAUSE:
                    _logger.warning("A call of the code interpreter waits for a session: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LAST_PAUSE)

    async def run(self, code: str, seconds: float) -> CellResult:
        """Run a cell in the open session. Raises `ToolError` where it is lost without a fault of the code."""
        assert self._session is not None
        try:
            result = await self._session.run(code, max_seconds=seconds)
        except SandboxError as error:
            await self.close()
            raise ToolError(f"{error} Variables and files are lost: the next call starts afresh.") from error
        if result.session_ended:
            await self.close()
        return result

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _result(content: Content, result: ExecutionResult | CellResult) -> ToolResult:
    metrics = {"seconds": result.seconds, "timed_out": float(result.timed_out), "ok": float(result.ok)}
    return ToolResult(content, is_error=not result.ok, metrics=metrics)


def strip_fence(code: str) -> str:
    """The code inside of a Markdown fence, where the whole is one."""
    match = _FENCE.fullmatch(code)
    return match["code"] if match else code


def sandbox_at(where: str | Sequence[str], options: dict[str, Any]) -> Sandbox:
    """ "local", a level, or the address of daemons, as options of tools and rewards say it. Raises `UserError`."""
    if isinstance(where, str) and "://" not in where:
        return sandboxes.create(sandboxes.DEFAULT_LEVEL if where == "local" else where, **options)
    from agentloop.sandboxes.client.client import SandboxClient

    try:
        inspect.signature(SandboxClient).bind(where, **options)
    except TypeError as error:
        known = [name for name in inspect.signature(SandboxClient).parameters if name != "urls"]
        raise UserError(
            f"A sandbox daemon does not take these options from its clients: {error}. Options here: "
            f"{', '.join(known)}. Give the others to `agentloop tools serve`."
        ) from error
    return SandboxClient(where, **options)
