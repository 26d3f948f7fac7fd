"""`DaemonConnection`: HTTP to one daemon that serves boxes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any

import httpx

from agentloop.boxes.interface.box import BoxError, BoxLostError, ProgramEndedError
from agentloop.errors import UserError

_CONNECT_SECONDS = 5.0
_CHUNK = 1 << 18
_ARGUMENTS = {"idle_seconds": "lease_seconds", "max_seconds": "timeout"}
"""Fields of the daemon that have another name in Python."""


class DaemonDownError(BoxError):
    """The daemon cannot be reached, or the connection broke before its answer."""


class FullError(BoxError):
    """The daemon has reached its limit of boxes."""


class DaemonConnection:
    """Connections to one daemon. It belongs to one event loop."""

    def __init__(self, address: str, token: str | None) -> None:
        """Prepare connections. Raises `UserError` for an invalid address."""
        self.address = address.rstrip("/")
        self.boxes = 0
        """Number of this client's boxes on the daemon."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.AsyncClient(
                base_url=self.address,
                headers=headers,
                timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0),  # uvicorn must not close first
                trust_env=False,  # daemons are not on the internet
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"The address of a daemon {address!r} is not valid: {error}.") from error

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        file: IO[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> httpx.Response:
        """Return the answer to a request with a JSON body or a file.

        Raises `DaemonDownError`, including after `seconds`; `FullError`, `BoxLostError`, `ProgramEndedError`
        and `BoxError` as the daemon reports; `UserError` for a request that it refuses.
        """
        content = None if file is None else _pieces(file)
        try:
            async with asyncio.timeout(seconds):
                answer = await self._client.request(method, path, json=body, content=content, params=params)
        except TimeoutError as error:
            raise DaemonDownError(f"The daemon {self.address} did not answer within {seconds:g} s.") from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self._check(answer)
        return answer

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, params: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Yield an answer that is read in pieces. Raises the errors of `call`."""
        try:
            async with self._client.stream(method, path, json=body, params=params) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    self._check(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> DaemonDownError:
        reason = str(error).rstrip(".") or type(error).__name__
        return DaemonDownError(f"The daemon {self.address} cannot be reached: {reason}.")

    def _check(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status < 400:
            return
        text = f"The daemon {self.address} answers: {_detail(answer)}"
        if status == 409:
            raise ProgramEndedError(_detail(answer))
        if status == 410:
            raise BoxLostError(text)
        if status == 429:
            raise FullError(text)
        if status in (401, 403, 404, 413, 422, 501):
            raise UserError(text)
        raise BoxError(_detail(answer))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _detail(answer: httpx.Response) -> str:
    try:
        detail = json.loads(answer.text)["detail"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}."
    if not isinstance(detail, list):
        return str(detail)
    field = ".".join(map(str, detail[0]["loc"][1:]))  # the first says where it is: in the body or the query
    message = str(detail[0]["msg"])
    return f"{_ARGUMENTS.get(field, field)}: {message}" if field else message


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    offset = 0
    while piece := await asyncio.to_thread(os.pread, file.fileno(), _CHUNK, offset):
        offset += len(piece)
        yield piece
