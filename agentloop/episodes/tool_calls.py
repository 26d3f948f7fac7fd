"""Run the calls of one turn concurrently, and answer each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentloop.episodes.fitting import fit_content
from agentloop.errors import FailureKind
from agentloop.tools.base import ToolResult
from agentloop.types.limits import Limits, StopReason
from agentloop.types.messages import InvalidCall, Message, ToolCall

if TYPE_CHECKING:
    from agentloop.rendering.base import Renderer
    from agentloop.tools.sessions import ToolSessions

Call = ToolCall | InvalidCall


@dataclass(slots=True)
class CallAnswers:
    """Results and tool messages of a turn, one of each per answer, in the order of the calls."""

    results: list[ToolResult]
    messages: list[Message]

    @property
    def stop(self) -> StopReason | None:
        """Stop reason of the first result that ends the episode; None if none does."""
        for result in self.results:
            if result.stop:
                return StopReason.TOOL_STOPPED if result.stop is True else result.stop
        return None

    @property
    def all_invalid(self) -> bool:
        """Whether every call of the model was invalid."""
        return all(result.failure is FailureKind.MODEL for result in self.results)


async def answer_calls(
    calls: Sequence[Call], sessions: ToolSessions | None, limits: Limits, deadline: float, renderer: Renderer
) -> CallAnswers:
    """Run the first `max_parallel_calls` well-formed calls concurrently; answer the others with an error.

    The first `max_answered_calls` calls get an answer each. Later calls, which do not run, share one answer, because
    some policies write hundreds of calls in a turn. `deadline` is the `time.monotonic()` at which the episode ends.
    """
    if len(calls) == 1 and sessions is not None and isinstance(call := calls[0], ToolCall):
        result = await _fit(await sessions.call(call, deadline), limits.max_observation_tokens, renderer)
        return CallAnswers([result], [_message(call, result)])  # most turns need no task and no bookkeeping
    runnable: dict[int, ToolCall] = {}
    for index, call in enumerate(calls):
        if isinstance(call, ToolCall) and len(runnable) < limits.max_parallel_calls:
            runnable[index] = call
    ran = dict(zip(runnable, await _run(list(runnable.values()), sessions, deadline), strict=True))
    answered: list[tuple[Call, ToolResult]] = []
    unanswered: list[Call] = []
    for index, call in enumerate(calls):
        if index in ran:
            answered.append((call, await _fit(ran[index], limits.max_observation_tokens, renderer)))
        elif index < limits.max_answered_calls:
            answered.append((call, _refuse(call, limits)))
        else:
            unanswered.append(call)
    if unanswered:
        text = f"{len(unanswered)} more calls of this turn were not run: it has {len(calls)} calls. Make fewer at once."
        answered.append((unanswered[0], _failed(text)))
    return CallAnswers([result for _, result in answered], [_message(call, result) for call, result in answered])


async def _run(calls: Sequence[ToolCall], sessions: ToolSessions | None, deadline: float) -> Sequence[ToolResult]:
    if sessions is None:
        return [_failed(f"There is no tool {call.name!r}: this task has no tools.") for call in calls]
    return await asyncio.gather(*(sessions.call(call, deadline) for call in calls))


def _refuse(call: Call, limits: Limits) -> ToolResult:
    if isinstance(call, InvalidCall):
        return _failed(call.error)
    return _failed(
        f"Not run: one turn may call at most {limits.max_parallel_calls} tools at once. Call it again in the next turn."
    )


def _failed(text: str) -> ToolResult:
    return ToolResult(text, is_error=True, failure=FailureKind.MODEL)


async def _fit(result: ToolResult, max_tokens: int, renderer: Renderer) -> ToolResult:
    content = await fit_content(result.content, max_tokens, renderer)
    return result if content is result.content else replace(result, content=content)


def _message(call: Call, result: ToolResult) -> Message:
    message: Message = {"role": "tool", "content": result.content, "tool_call_id": call.id}
    if call.name:
        message["name"] = call.name
    return message
