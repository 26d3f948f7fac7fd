"""Answer a request as a stream of server-sent events while tokens are sampled."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from agentloop.gateway.answers import Completion, head, logprobs_of, response_message, usage_of
from agentloop.gateway.deltas import Deltas
from agentloop.gateway.errors import ApiError
from agentloop.gateway.requests import ChatRequest

if TYPE_CHECKING:
    from agentloop.gateway.session import Session
    from agentloop.rendering.base import Renderer


async def streamed(session: Session, request: ChatRequest, renderer: Renderer) -> StreamingResponse:
    """Return the response when its first event is ready. An earlier failure raises `ApiError`, as without a stream."""
    turns = _Turns(session, request, renderer)
    try:
        await turns.begin()
    except BaseException:
        await turns.end()
        raise
    return _Response(turns)


class _Response(StreamingResponse):
    """A response that stops sampling when its client leaves."""

    def __init__(self, turns: _Turns) -> None:
        super().__init__(turns.events(), media_type="text/event-stream")
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._turns.end()


class _Turns:
    """The `n` turns of a request, whose events share one queue."""

    def __init__(self, session: Session, request: ChatRequest, renderer: Renderer) -> None:
        self._session, self._request, self._renderer = session, request, renderer
        self._news: asyncio.Queue[dict[str, Any] | Completion | Exception] = asyncio.Queue()
        self._first: dict[str, Any] | Completion | Exception | None = None
        self._tasks = [asyncio.ensure_future(self._play(index)) for index in range(request.n)]
        self._name, self._created = secrets.token_hex(8), int(time.time())

    async def begin(self) -> None:
        """Wait for the first event. Raises `ApiError`."""
        self._first = await self._news.get()
        if isinstance(self._first, Exception):
            raise self._first

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def events(self) -> AsyncIterator[str]:
        for index in range(self._request.n):
            yield self._event([{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        completions: list[Completion] = []
        news = self._first
        while True:
            if isinstance(news, ApiError):
                yield f"data: {json.dumps(news.body())}\n\n"
                return
            if isinstance(news, Exception):
                raise news
            if isinstance(news, Completion):
                completions.append(news)
                if len(completions) == self._request.n:
                    break
            elif news is not None:
                yield self._event([news])
            news = await self._news.get()
        if self._request.include_usage:
            yield self._event([], usage=usage_of(completions))
        yield "data: [DONE]\n\n"

    async def _play(self, index: int) -> None:
        """Sample one turn and queue its events."""
        heard: list[int] = []
        is_more = asyncio.Event()

        def hear(ids: Sequence[int]) -> None:
            heard.extend(ids)
            is_more.set()

        turn = asyncio.ensure_future(self._session.complete(self._request, index, hear=hear))
        turn.add_done_callback(lambda _: is_more.set())
        deltas = Deltas(self._request, self._renderer)
        try:
            while not turn.done():
                await is_more.wait()
                is_more.clear()
                ids = heard[:]
                heard.clear()
                if ids and (delta := await deltas.more(ids)):
                    self._send(index, delta)
            completion = await turn
        except Exception as error:  # the reader of the events raises it
            self._news.put_nowait(error)
            return
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        self._finish(index, completion, deltas)

    def _finish(self, index: int, completion: Completion, deltas: Deltas) -> None:
        if rest := deltas.rest(completion.parsed):
            self._send(index, rest)
        calls = response_message(completion.parsed).get("tool_calls", [])
        for number, call in enumerate(calls):
            self._send(index, {"tool_calls": [{"index": number, **call}]})
        last: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": completion.finish_reason}
        last["logprobs"] = logprobs_of(completion, self._renderer)
        if self._request.return_token_ids:
            last["token_ids"] = list(completion.generation.ids)
        self._news.put_nowait(last)
        self._news.put_nowait(completion)

    def _send(self, index: int, delta: dict[str, Any]) -> None:
        self._news.put_nowait({"index": index, "delta": delta, "finish_reason": None})

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        whole = head(self._request, "chat.completion.chunk", self._name, self._created) | {"choices": choices} | more
        return f"data: {json.dumps(whole)}\n\n"
