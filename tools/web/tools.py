"""`WebSearch` and `WebFetch`: let the model search the web and read pages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import httpx

from agentloop.errors import ToolError, UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.web.addresses import PublicOnly
from agentloop.tools.web.fetcher import Fetcher, FetchError
from agentloop.tools.web.providers import provider


class WebSearch(Tool):
    """Search the web. Gives titles, addresses and snippets of pages."""

    def __init__(
        self,
        provider_name: str,
        *,
        url: str | None = None,
        key: str | None = None,
        topk: int = 5,
        timeout: float = 20.0,
    ) -> None:
        """Select a provider: serper, brave, tavily or searxng.

        `url` replaces the usual address of its route. `key` defaults to the environment variable
        AGENTLOOP_WEB_SEARCH_KEY. `timeout` is in seconds. Raises `UserError` for an unknown provider, for a missing or
        invalid key or address, and for an invalid limit.
        """
        if topk < 1:
            raise UserError(f"topk of web_search must be at least 1, got {topk}.")
        self._provider = provider(provider_name)
        self._url = url or self._provider.url
        self._key = key or os.environ.get("AGENTLOOP_WEB_SEARCH_KEY", "")
        self._topk = topk
        self.timeout = timeout
        if not self._url:
            raise UserError(
                f"web_search with {provider_name} needs url, the address of its route: https://HOST/search."
            )
        if not self._url.startswith(("http://", "https://")):
            raise UserError(f"url of web_search must start with http:// or https://, got {self._url!r}.")
        if not (self._key.isascii() and self._key.isprintable()):  # it is sent in a header
            raise UserError("The key of web_search must be printable ASCII: correct AGENTLOOP_WEB_SEARCH_KEY or key.")
        if self._provider.needs_key and not self._key:
            raise UserError(f"web_search with {provider_name} needs a key: set AGENTLOOP_WEB_SEARCH_KEY.")

    async def call(self, ctx: ToolContext, query: Annotated[str, "What to look for"]) -> ToolResult:
        request = self._provider.request(query, self._topk, self._key)
        try:
            async with httpx.AsyncClient(timeout=self.timeout) as client:
                response = await client.request(self._provider.method, self._url, **request)
            response.raise_for_status()
            hits = self._provider.hits(response.json())[: self._topk]
        except httpx.HTTPStatusError as error:
            raise ToolError(f"The web search answers with HTTP {error.response.status_code}.") from error
        except httpx.HTTPError as error:
            raise ToolError(f"The web search cannot be reached: {type(error).__name__}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ToolError("The answer of the web search cannot be read.") from error
        text = "\n\n".join(f"{number}. {hit.title}\n{hit.url}\n{hit.snippet}" for number, hit in enumerate(hits, 1))
        return ToolResult(text or "Nothing was found.", metrics={"found": float(len(hits))})


class WebFetch(Tool):
    """Read a web page as text."""

    by_name_only = True

    def __init__(
        self,
        *,
        timeout: float = 15.0,
        max_chars: int = 8000,
        max_bytes: int = 4 << 20,
        max_redirects: int = 5,
        ports: Sequence[int] = (80, 443),
        allowed_networks: Sequence[str] = (),
        workers: int = 4,
    ) -> None:
        """Set the limits. Raises `UserError` for invalid ones and for invalid networks.

        `timeout` is the maximum seconds of a page. At most `max_bytes` of a page are read, and the model sees
        `max_chars`. The tool connects to `ports` of public addresses and of `allowed_networks` (CIDR). `workers` is the
        number of pages whose text is extracted at the same time.
        """
        if not (timeout > 0 and max_chars > 0 and max_bytes > 0 and workers > 0):
            raise UserError("timeout, max_chars, max_bytes and workers of web_fetch must be above 0.")
        if max_redirects < 0 or not ports:
            raise UserError("web_fetch needs at least one of `ports`, and no `max_redirects` below 0.")
        try:
            network = PublicOnly(ports, allowed=allowed_networks)
        except ValueError as error:
            raise UserError(f"Invalid network in allowed_networks of web_fetch: {error}.") from error
        self.timeout = timeout + 10.0
        self._fetcher = Fetcher(
            network, seconds=timeout, max_bytes=max_bytes, max_redirects=max_redirects, workers=workers
        )
        self._max_chars = max_chars

    async def start(self) -> None:
        try:
            import trafilatura  # noqa: F401
        except ImportError as error:
            raise UserError("web_fetch needs trafilatura: `pip install 'agentloop[web]'`.") from error

    async def shutdown(self) -> None:
        await self._fetcher.close()

    async def call(
        self, ctx: ToolContext, url: Annotated[str, "Address of the page, http:// or https://"]
    ) -> ToolResult:
        try:
            page = await self._fetcher.fetch(url)
        except FetchError as error:
            return ToolResult(f"Error: {error}.", is_error=True)
        text = f"{page.title}\n{page.url}\n\n{page.text}" if page.title else f"{page.url}\n\n{page.text}"
        if page.truncated or len(text) > self._max_chars:
            text = text[: self._max_chars] + "\n[the rest of the page is cut]"
        return ToolResult(text, metrics={"chars": float(len(page.text))})
