"""`RetrievalServer`: an HTTP retriever with the protocol of Search-R1, verl, slime and SkyRL."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import httpx

from agentloop.errors import ToolError, UserError
from agentloop.tools.search.passages import Passage, passage_of

_RETRIED = (500, 502, 503, 504)


class RetrievalServer:
    """`Retriever` that POSTs `{"queries": [...], "topk": k, "return_scores": true}`.

    It reads documents with and without scores. If the server accepts only `query` (SkyRL's), it switches to that form.
    `url` is the address of the route, http://host:port/retrieve. `timeout` is the maximum seconds of one attempt.
    `pause` is the seconds before the second attempt; further pauses double.
    """

    def __init__(
        self, url: str, *, timeout: float = 30.0, tries: int = 4, token: str | None = None, pause: float = 0.5
    ) -> None:
        self._url = url
        self._timeout = timeout
        self._tries = tries
        self._pause = pause
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._one_by_one = False
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        try:
            await self.retrieve(["test"], 1)
        except ToolError as error:
            raise UserError(f"The retrieval server {self._url} is not usable: {error}") from error

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        if self._one_by_one:
            return [await self._one(query, topk) for query in queries]
        answer = await self._post({"queries": list(queries), "topk": topk, "return_scores": True})
        if answer is None:
            self._one_by_one = True
            return [await self._one(query, topk) for query in queries]
        return self._read(answer, len(queries))

    async def _one(self, query: str, topk: int) -> list[Passage]:
        answer = await self._post({"query": query, "topk": topk, "return_scores": True})
        if answer is None:
            raise ToolError("it accepts neither `queries` nor `query`.")
        return self._read(answer, 1)[0]

    async def _post(self, body: dict[str, Any]) -> Any:
        """Return the parsed answer, or None if the server does not accept such a request."""
        problem = ""
        for attempt in range(self._tries):
            if attempt:
                await asyncio.sleep(self._pause * 2 ** (attempt - 1))
            try:
                response = await self._connection().post(self._url, json=body)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__} {error}".strip()
                continue
            if response.status_code in _RETRIED:
                problem = f"HTTP {response.status_code}"
                continue
            if response.status_code == 422:
                return None
            if response.status_code != 200:
                raise ToolError(f"the retrieval server answers with HTTP {response.status_code}.")
            try:
                return response.json()
            except ValueError as error:
                raise ToolError("the answer of the retrieval server is not JSON.") from error
        raise ToolError(f"the retrieval server does not answer: {problem}.")

    @staticmethod
    def _read(answer: Any, num_queries: int) -> list[list[Passage]]:
        try:
            results = answer["result"]
            if len(results) != num_queries:
                raise ValueError(f"{len(results)} results for {num_queries} queries")
            return [[_passage(item) for item in result] for result in results]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ToolError(f"the answer of the retrieval server cannot be read: {error}.") from error

    def _connection(self) -> httpx.AsyncClient:
        if self._client is None or self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            limits = httpx.Limits(max_connections=128, max_keepalive_connections=128)
            self._client = httpx.AsyncClient(timeout=self._timeout, limits=limits, headers=self._headers)
        return self._client

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None


def _passage(item: dict[str, Any]) -> Passage:
    if isinstance(document := item.get("document"), dict):
        score = item.get("score")
        return passage_of(document, math.nan if score is None else float(score))
    return passage_of(item)
