"""`Fetcher`: fetches a page as text, with limits on size, time and redirects."""

from __future__ import annotations

import asyncio
import re
import zlib
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpcore

from agentloop.tools.web.addresses import AddressError, PublicOnly
from agentloop.tools.web.page_text import page_text

_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT = re.compile(r"text/|application/(json|xml|xhtml\+xml|rss\+xml|atom\+xml|javascript|.*\+(json|xml))")
_CHUNK = 1 << 16


class FetchError(Exception):
    """The page cannot be fetched. The message is for the model."""


@dataclass(slots=True, frozen=True)
class Page:
    """Fetched page."""

    url: str
    """Address after redirects."""
    title: str
    text: str
    truncated: bool
    """Whether only the beginning was read."""


class Fetcher:
    """Client that fetches pages. `network` decides which addresses it may connect to."""

    def __init__(
        self,
        network: PublicOnly,
        *,
        seconds: float = 15.0,
        max_bytes: int = 4 << 20,
        max_redirects: int = 5,
        user_agent: str = "agentloop",
    ) -> None:
        """Set the limits: `seconds` includes redirects, and `max_bytes` counts after decompression."""
        self._network = network
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._headers: list[tuple[bytes | str, bytes | str]] = [
            ("User-Agent", user_agent),
            ("Accept", "text/html, text/*;q=0.9"),
            ("Accept-Encoding", "gzip"),
        ]

    async def fetch(self, url: str) -> Page:
        """Fetch a page. Raises `FetchError`."""
        try:
            async with (
                asyncio.timeout(self._seconds),
                # One pool per page, so that a site can affect only its own connection.
                httpcore.AsyncConnectionPool(network_backend=self._network, http2=False) as pool,
            ):
                url, content_type, body, truncated = await self._follow(pool, url)
            title, text = await asyncio.to_thread(page_text, body, content_type, url)
        except TimeoutError as error:
            raise FetchError(f"the page took longer than {self._seconds:g} s") from error
        except AddressError as error:
            raise FetchError(str(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise FetchError(f"the page cannot be read: {type(error).__name__} {error}".strip()) from error
        return Page(url, title, text, truncated)

    async def _follow(self, pool: httpcore.AsyncConnectionPool, url: str) -> tuple[str, str, bytes, bool]:
        for _ in range(self._max_redirects + 1):
            url = checked_url(url)
            async with pool.stream("GET", url, headers=self._headers) as response:
                headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
                if response.status in _REDIRECTS and b"location" in headers:
                    url = urljoin(url, headers[b"location"])
                    continue
                if response.status != 200:
                    raise FetchError(f"the server answers with HTTP {response.status}")
                content_type = headers.get(b"content-type", "text/html")
                if not _TEXT.match(content_type.strip().lower()):
                    raise FetchError(f"the page is no text but {content_type.partition(';')[0]}")
                body, truncated = await self._read(response, headers.get(b"content-encoding", "identity"))
                return url, content_type, body, truncated
        raise FetchError(f"there are more than {self._max_redirects} redirects")

    async def _read(self, response: httpcore.Response, encoding: str) -> tuple[bytes, bool]:
        """Read the beginning of the body. Decompressing in steps never holds a zip bomb in memory."""
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise FetchError(f"the page is encoded as {encoding}, which was not asked for")
        inflate = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
        body = bytearray()
        async for chunk in response.aiter_stream():
            while chunk:
                try:
                    piece = chunk if inflate is None else inflate.decompress(chunk, _CHUNK)
                except zlib.error as error:
                    raise FetchError("the page is no valid gzip") from error
                body += piece
                if len(body) >= self._max_bytes:
                    return bytes(body[: self._max_bytes]), True
                chunk = b"" if inflate is None or inflate.eof else inflate.unconsumed_tail
        return bytes(body), False


def checked_url(url: str) -> str:
    """Normalize an http(s) URL. Raises `FetchError` for a user name, an invalid host and other schemes."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise FetchError(f"this is no URL: {error}") from error
    if parts.scheme.lower() not in ("http", "https"):
        raise FetchError("only http:// and https:// pages are fetched")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc or "\\" in url:
        raise FetchError("a URL may not hold a user name")
    if not host or any(character.isspace() or ord(character) < 33 for character in parts.geturl()):
        raise FetchError("this is no URL")
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode()
    except UnicodeError as error:
        raise FetchError(f"{host!r} is no host") from error
    bracketed = f"[{ascii_host}]" if ":" in ascii_host else ascii_host
    netloc = bracketed if port is None else f"{bracketed}:{port}"
    quoted = re.sub(r"[^\x21-\x7e]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), parts.path)
    query = re.sub(r"[^\x21-\x7e]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), parts.query)
    return f"{parts.scheme.lower()}://{netloc}{quoted or '/'}" + (f"?{query}" if query else "")
