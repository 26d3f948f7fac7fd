"""uvicorn's HTTP/1.1 with limits on slow, greedy and many clients, which apply before any token is checked."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_BYTES = 64 << 10
"""Maximum bytes of a request's headers, and of any part that the parser must collect before it can use it."""
_HEADER_COST = 32
"""Bytes that count for each header in addition to its text, so that there are at most about 2,000 headers."""


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too slow or too large, or whose client does not read the answer."""

    head_seconds = 20.0
    """Seconds for all headers, from the connection or from the first byte of a later request."""
    spare_connections = 64
    """Number of connections above the limit that get an answer. Further connections are closed at once."""
    stall_seconds = 60.0
    """Seconds in which a client that has not read all of an answer must read some of it."""

    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _collected_bytes = 0
    _progressed = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) > limit + self.spare_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._progressed = False
        super().data_received(data)
        # For each piece of a header the parser copies all earlier pieces.
        self._collected_bytes = 0 if self._progressed else self._collected_bytes + len(data)
        if self._collected_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._forget_stall()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        if self._timer is None:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._progressed = True
        self._count(len(name) + len(value) + _HEADER_COST)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._progressed = True
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_progress()

    def resume_writing(self) -> None:
        self._forget_stall()
        super().resume_writing()

    def _expect_progress(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.stall_seconds, self._check_progress, unread)

    def _check_progress(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() < unread:
            self._expect_progress()
        else:
            self.transport.abort()

    def _forget_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _count(self, size: int) -> None:
        """Count a part of a head. Raises `ValueError`, which ends the parsing and gives 400."""
        self._head_bytes += size
        if self._head_bytes > _HEAD_BYTES:
            raise ValueError(f"the headers have more than {_HEAD_BYTES} bytes")

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _head_is_there(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()
