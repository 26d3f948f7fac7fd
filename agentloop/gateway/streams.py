"""Answer a request as a stream of server-sent events while tokens are sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from agentloop.gateway.turns.completions import Completion
from agentloop.gateway.turns.deltas import Delta, Deltas
from agentloop.gateway.turns.errors import ApiError
from agentloop.gateway.turns.requests import ModelRequest

if TYPE_CHECKING:
    from agentloop.gateway.dialects.base import Dialect
    from agentloop.gateway.session import Session
    from agentloop.rendering.base import Renderer

_News = tuple[int, Delta | Completion | None] | Exception
"""A new part or the end of the turn with this index, None while it is silent, or the error that ended the answer."""
_SILENT_TOKENS = 64
"""If so many tokens bring nothing to send, the client gets an event that keeps the connection alive."""


async def streamed(session: Session, request: ModelRequest, dialect: Dialect, renderer: Renderer) -> StreamingResponse:
    """Return the response when its first event is ready. An earlier failure raises `ApiError`, as without a stream."""
    turns = _Turns(session, request, dialect, renderer)
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

    def __init__(self, session: Session, request: ModelRequest, dialect: Dialect, renderer: Renderer) -> None:
        self._session, self._request, self._renderer = session, request, renderer
        self._events = dialect.events(request, renderer)
        self._news: asyncio.Queue[_News] = asyncio.Queue()
        self._first: _News | None = None
        self._tasks = [asyncio.ensure_future(self._play(index)) for index in range(request.n)]

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
        yield self._events.begin()
        completions: list[Completion] = []
        news = self._first
        while len(completions) < self._request.n:
            news = news or await self._news.get()
            if isinstance(news, ApiError):
                yield self._events.failed(news)
                return
            if isinstance(news, Exception):
                raise news
            index, what = news
            if isinstance(what, Completion):
                completions.append(what)
                yield self._events.end(index, what)
            else:
                yield self._events.silent() if what is None else self._events.more(index, what)
            news = None
        yield self._events.close(completions)

    async def _play(self, index: int) -> None:
        """Sample one turn and queue its events."""
        heard: list[int] = []
        is_more = asyncio.Event()

        prefix = ""

        def hear(ids: Sequence[int], call_id_prefix: str) -> None:
            nonlocal prefix
            prefix = call_id_prefix
            heard.extend(ids)
            is_more.set()

        turn = asyncio.ensure_future(self._session.complete(self._request, index, hear=hear))
        turn.add_done_callback(lambda _: is_more.set())
        deltas = Deltas(self._request, self._renderer)
        num_silent = 0
        try:
            while not turn.done():
                await is_more.wait()
                is_more.clear()
                ids = heard[:]
                heard.clear()
                parts = await deltas.more(ids, prefix) if ids else []
                num_silent = 0 if parts else num_silent + len(ids)
                if num_silent >= _SILENT_TOKENS:
                    num_silent = 0
                    self._news.put_nowait((index, None))
                for part in parts:
                    self._news.put_nowait((index, part))
            completion = await turn
        except Exception as error:  # the reader of the events raises it
            self._news.put_nowait(error)
            return
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        for delta in deltas.rest(completion.parsed):
            self._news.put_nowait((index, delta))
        self._news.put_nowait((index, completion))
