"""`ToolSessions`: runs the calls of one trajectory. Every failure of a call becomes its result."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from agentloop.errors import FailureKind, ToolError, described, named, nearest
from agentloop.process.log_once import tell_blocking, tell_once
from agentloop.tools.base import ArgumentSchema, Tool, ToolContext, ToolResult
from agentloop.tools.first_step import first_step
from agentloop.tools.rate_limits import SharedLimit
from agentloop.tools.schema import ArgumentError
from agentloop.tools.time_limit import OutOfTimeError, within
from agentloop.types.messages import Message, ToolCall

_logger = logging.getLogger(__name__)

_MAX_MESSAGE = 500


class _Session:
    """One tool in one trajectory, from its first call on."""

    __slots__ = ("ctx", "is_open", "lock", "tool")

    def __init__(self, tool: Tool, ctx: ToolContext) -> None:
        self.tool = tool
        self.ctx = ctx
        self.is_open = type(tool).open is Tool.open
        self.lock = asyncio.Lock()

    async def open(self) -> None:
        async with self.lock:  # calls of one turn run concurrently
            if not self.is_open:
                self.ctx.state = await self.tool.open(self.ctx)
                self.is_open = True


class ToolSessions:
    """Tools of one trajectory, created by `Toolset.sessions`. Each opens at its first call and closes once."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        arguments: Mapping[str, ArgumentSchema],
        trajectory_id: str,
        task: Mapping[str, Any],
        seed: int,
        images: Sequence[Any],
        env: Any = None,
        shared_state: dict[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        self._tools = tools
        self._arguments = arguments
        self._trajectory_id = trajectory_id
        self._task = task
        self._seed = seed
        self._images = images
        self._env = env
        self._messages = messages
        self._shared_state = {} if shared_state is None else shared_state
        self._sessions: dict[str, _Session] = {}

    async def call(self, call: ToolCall, deadline: float) -> ToolResult:
        """Run one call until `deadline` (`time.monotonic()`) at most. Raises only if it is cancelled."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools)
            return _refused(f"There is no tool {call.name!r}.{nearest(call.name, self._tools)} Tools: {known}.")
        try:
            arguments = self._arguments[call.name].validate(call.arguments)
            session = self._sessions.get(call.name) or self._session(tool)
            if tool.limit is None:
                return await _run(session, arguments, deadline)
            return await _run_limited(tool.limit, session, arguments, deadline)
        except ArgumentError as error:
            return _refused(f"Wrong arguments for {call.name!r}:\n{error}")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed("The tool was cancelled.")  # the tool raised it: this call was not cancelled
        except ToolError as error:
            return _failed(str(error))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # the boundary: a tool can fail only its own call, even by a panic in Rust
            tell_once(call.name, error)
            return _failed(_shorten(described(error)))

    def _session(self, tool: Tool) -> _Session:
        ctx = ToolContext(
            trajectory_id=self._trajectory_id,
            task=self._task,
            rng=random.Random(f"{self._seed}/{tool.name}"),
            images=self._images,
            messages=self._messages,
            env=self._env,
            shared_state=self._shared_state,
        )
        session = self._sessions[tool.name] = _Session(tool, ctx)
        return session

    async def close(self) -> list[str]:
        """Close the open tools, each within its own timeout, and return one line per failure.

        Closing continues in the background if this call is cancelled. A second call does nothing.
        """
        sessions, self._sessions = self._sessions, {}
        to_close = [s for s in sessions.values() if s.is_open and type(s.tool).close is not Tool.close]
        if not to_close:
            return []
        outcomes = await asyncio.shield(asyncio.gather(*map(_close, to_close)))
        return [outcome for outcome in outcomes if outcome is not None]


async def _run_limited(limit: SharedLimit, session: _Session, arguments: dict[str, Any], deadline: float) -> ToolResult:
    """Run a call under a limit. Waiting for the limit counts against the episode's time, not the tool's timeout."""
    started = time.monotonic()
    running = limit.admitted()
    try:
        async with asyncio.timeout(deadline - started):
            await running.__aenter__()
    except TimeoutError:
        return _failed(f"The call waited {time.monotonic() - started:.3g} s for a free slot and did not get one.")
    waited = time.monotonic() - started
    try:
        result = await _run(session, arguments, deadline)
    finally:
        await running.__aexit__(None, None, None)
    return replace(result, metrics={**result.metrics, "seconds_waiting": waited})


async def _run(session: _Session, arguments: dict[str, Any], deadline: float) -> ToolResult:
    seconds = min(session.tool.timeout, deadline - time.monotonic())
    started = time.monotonic()
    session.ctx.deadline = started + seconds
    try:
        is_done, result = first_step(_call(session, arguments))
        tell_blocking(session.tool.name, time.monotonic() - started)
        if not is_done:
            result = await within(seconds, result)
    except OutOfTimeError:
        return _failed(f"The call took longer than the {max(seconds, 0.0):.3g} s that it had.")
    return result if isinstance(result, ToolResult) else ToolResult(_as_text(result, session.tool))


def _as_text(result: object, tool: Tool) -> str:
    """Convert the result of a tool to text. Raises `TypeError` if JSON cannot express it."""
    if isinstance(result, str):
        return result
    if result is None:
        raise TypeError(f"{named(_written(tool))} returned None: return a string for the model")
    try:
        return to_json(result, inf_nan_mode="strings").decode()  # JSON has no NaN, and null would hide infinity
    except PydanticSerializationError as error:
        raise TypeError(
            f"{named(_written(tool))} returned {type(result).__name__}: return a string, a ToolResult or a JSON value"
        ) from error


def _written(tool: Tool) -> Callable[..., Any]:
    """Return the function that the author of a tool wrote."""
    return getattr(tool, "function", tool.call)


async def _call(session: _Session, arguments: dict[str, Any]) -> Any:
    if not session.is_open:
        await session.open()
    return await session.tool.call(session.ctx, **arguments)


async def _close(session: _Session) -> str | None:
    tool = session.tool
    session.ctx.deadline = time.monotonic() + tool.timeout
    try:
        await within(tool.timeout, tool.close(session.ctx))
    except (Exception, SystemExit) as error:  # the boundary: the caller counts it
        problem = f"The tool {tool.name!r} failed to close: {described(error)}"
        _logger.warning(problem, exc_info=error)
        return _shorten(problem)
    return None


def _refused(text: str) -> ToolResult:
    return ToolResult(text, is_error=True, failure=FailureKind.MODEL)


def _failed(text: str) -> ToolResult:
    return ToolResult(text, is_error=True, failure=FailureKind.TOOL)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
