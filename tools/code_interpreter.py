"""`CodeInterpreter`: runs the model's Python code in a sandbox, on this machine or in daemons."""

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
from agentloop.registry.options import check_options
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
"""Seconds that a call may wait for a sandbox slot. The sandbox itself limits the time of the code."""
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0
"""First and longest pause, in seconds, between attempts to get a session while all are in use. Pauses double."""
_STATEFUL = (
    "Run Python code as the next cell of a notebook and return what it prints; the value of a last line that is an "
    "expression is printed too. Variables, imports and files are kept for the next call."
)


class CodeInterpreter(Tool):
    """Tool that runs Python code, each call in a fresh process or, with `stateful`, in one notebook per trajectory."""

    # Models are trained with this text, the line break included.
    description = (
        "Run Python code in a fresh process and return what it prints; the value of a last line that is an expression "
        "is\nprinted too. Nothing is kept between calls."
    )

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
        """Create the sandbox that all trajectories share. Raises `UserError` for an unknown level, option or limit.

        `sandbox` is "local" for the default isolation level of this machine, the name of a level, or the addresses of
        sandbox daemons (`http://a:8080,http://b:8080`). `sandbox_options` configure it (`packages=["numpy"]`, `token=`,
        ...). With `stateful`, a trajectory has one notebook instead of a fresh process per call. `timeout` is the
        maximum seconds of the code. `max_images` is the number of images that a notebook call may show: 0 for text
        models.
        """
        if max_traceback_lines < 1 or max_images < 0:
            raise UserError(
                "The tool code_interpreter needs at least 1 `max_traceback_lines`, and no `max_images` below 0."
            )
        self.sandbox = sandbox_at(sandbox, sandbox_options, of="tool 'code_interpreter'", owner=CodeInterpreter)
        self.timeout = timeout + _QUEUE_SECONDS
        # Create both here, because they raise for invalid limits.
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
        # Fail now, not in every trajectory, if the sandbox cannot run code with these limits.
        if self._stateful:
            with suppress(SandboxBusyError):  # sessions work: they are only all in use
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
        async with notebook.lock:  # calls of one turn arrive together and run in order
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
        """Return the time limit of the code."""
        return max(min(self._execution.timeout, ctx.seconds_left), 0.001)


class _Notebook:
    """Session of one trajectory. The first cell opens it, and so does the next cell after it has ended."""

    def __init__(self, sandbox: Sandbox, settings: SessionSettings) -> None:
        self.lock = asyncio.Lock()
        self._sandbox = sandbox
        self._settings = settings
        self._session: Session | None = None

    async def open(self) -> None:
        """Open a session unless one is open. While all are in use, wait until another trajectory closes one."""
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
        """Run a cell in the open session. Raises `ToolError` if the sandbox loses the session."""
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
    """Return the code inside a Markdown fence if `code` is one fence, else `code` itself."""
    match = _FENCE.fullmatch(code)
    return match["code"] if match else code


def sandbox_at(where: str | Sequence[str], options: dict[str, Any], *, of: str, owner: type) -> Sandbox:
    """Return the sandbox at `where`: "local", a level, or addresses of daemons.

    `options` are those that the class `owner`, which errors call `of`, does not take itself. Raises `UserError` for an
    option that neither `owner` nor any sandbox takes, and for one that this sandbox does not take.
    """
    if options:
        check_options(options, _all_options(owner), of=of)
    if isinstance(where, str) and "://" not in where:
        return sandboxes.create(sandboxes.DEFAULT_LEVEL if where == "local" else where, **options)
    from agentloop.sandboxes.client.client import SandboxClient

    try:
        inspect.signature(SandboxClient).bind(where, **options)
    except TypeError as error:
        known = [name for name in inspect.signature(SandboxClient).parameters if name != "urls"]
        raise UserError(
            f"Clients of a sandbox daemon cannot set these options: {error}. Use only {', '.join(known)} here, and "
            "set the others in `agentloop tools serve`."
        ) from error
    return SandboxClient(where, **options)


def _all_options(owner: type) -> list[str]:
    """Return the options that a class takes itself, then those of all sandboxes."""
    from agentloop.sandboxes.client.client import SandboxClient

    own = [each.name for each in inspect.signature(owner).parameters.values() if each.kind is not each.VAR_KEYWORD]
    of_sandboxes = {name for level in sandboxes.LEVELS for name in sandboxes.LEVELS.get(level).options()}
    of_sandboxes.update(name for name in inspect.signature(SandboxClient).parameters if name != "urls")
    return list(dict.fromkeys([*own, *sorted(of_sandboxes)]))
