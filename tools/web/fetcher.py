"""`Fetcher`: fetches a page with limits on size, time and redirects, and extracts its text in a separate process."""

from __future__ import annotations

import asyncio
import base64
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpcore

from agentloop.process.worker_pool import WorkerDiedError, Workers
from agentloop.tools.web.addresses import AddressError, PublicOnly

_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT = re.compile(r"text/|application/(json|xml|xhtml\+xml|rss\+xml|atom\+xml|javascript|.*\+(json|xml))")
_CHUNK = 1 << 16
_MAX_HEADER_CHARS = 256
"""Maximum characters of a header. Those of browsers are shorter."""
_MAX_URL_CHARS = 8192
_MAX_HOST_CHARS = 253
"""Maximum characters of a host name (RFC 1035, section 2.3.4), without the final dot."""
_READ_SECONDS = 5.0
"""Seconds to extract the text of a page after it has arrived. A long article takes 0.2 s."""
_READER = Path(__file__).with_name("page_text.py")


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
        workers: int = 4,
    ) -> None:
        """Set the limits. `seconds` includes redirects, and `max_bytes` counts after decompression.

        `workers` is the number of pages whose text is extracted at the same time, each in its own process.
        """
        self._network = network
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._headers: list[tuple[bytes | str, bytes | str]] = [
            ("User-Agent", user_agent),
            ("Accept", "text/html, text/*;q=0.9"),
            ("Accept-Encoding", "gzip"),
        ]
        self._workers = Workers(_READER, workers, hello=_request(b"<p>", "text/html", "http://x/"))

    async def close(self) -> None:
        """End the processes."""
        await self._workers.close()

    async def fetch(self, url: str) -> Page:
        """Fetch a page. Raises `FetchError`."""
        try:
            async with (
                asyncio.timeout(self._seconds),
                # One pool per page, so that a site can affect only its own connection.
                httpcore.AsyncConnectionPool(network_backend=self._network, http2=False) as pool,
            ):
                url, content_type, body, truncated = await self._follow(pool, url)
        except TimeoutError as error:
            raise FetchError(f"the page took longer than {self._seconds:g} s") from error
        except AddressError as error:
            raise FetchError(str(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise FetchError(f"the page cannot be read: {type(error).__name__} {error}".strip()) from error
        title, text = await self._text_of(body, content_type, url)
        return Page(url, title, text, truncated)

    async def _text_of(self, body: bytes, content_type: str, url: str) -> tuple[str, str]:
        """Return title and text of a page. Raises `FetchError`."""
        request = await asyncio.to_thread(_request, body, content_type, url)
        try:
            answer = await self._workers.ask(request, seconds=_READ_SECONDS)
        except TimeoutError as error:
            raise FetchError(f"the text of the page cannot be extracted in {_READ_SECONDS:g} s") from error
        except WorkerDiedError as error:
            raise FetchError("the text of the page cannot be extracted within the limits") from error
        return answer["title"], answer["text"]

    async def _follow(self, pool: httpcore.AsyncConnectionPool, url: str) -> tuple[str, str, bytes, bool]:
        for _ in range(self._max_redirects + 1):
            url = checked_url(url)
            async with pool.stream("GET", url, headers=self._headers) as response:
                headers = {name.lower(): _header(value) for name, value in response.headers}
                if response.status in _REDIRECTS and b"location" in headers:
                    url = urljoin(url, headers[b"location"])
                    continue
                if response.status != 200:
                    raise FetchError(f"the server answers with HTTP {response.status}")
                content_type = headers.get(b"content-type", "text/html")[:_MAX_HEADER_CHARS]
                if not is_text(content_type):
                    raise FetchError(f"the page is not text but {content_type.partition(';')[0]}")
                body, truncated = await self._read(response, headers.get(b"content-encoding", "identity").lower())
                return url, content_type, body, truncated
        raise FetchError(f"there are more than {self._max_redirects} redirects")

    async def _read(self, response: httpcore.Response, encoding: str) -> tuple[bytes, bool]:
        """Read the beginning of the body. Decompressing in steps never holds a zip bomb in memory."""
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise FetchError(f"the page is encoded as {encoding}, which was not requested")
        inflate = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
        body = bytearray()
        async for chunk in response.aiter_stream():
            while chunk:
                if inflate is not None and inflate.eof:
                    if not chunk.startswith(b"\x1f"):
                        return bytes(body), False  # padding
                    inflate = zlib.decompressobj(wbits=31)  # a further member of the file (RFC 1952, section 2.2)
                try:
                    piece = chunk if inflate is None else inflate.decompress(chunk, _CHUNK)
                except zlib.error as error:
                    raise FetchError("the page is not valid gzip") from error
                body += piece
                if len(body) >= self._max_bytes:
                    return bytes(body[: self._max_bytes]), True
                chunk = b"" if inflate is None else inflate.unused_data or inflate.unconsumed_tail
        return bytes(body), False


def _header(value: bytes) -> str:
    """Decode a header. Addresses of redirects are often UTF-8, although HTTP has only ASCII and Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def is_text(content_type: str) -> bool:
    """Return whether a content type means text."""
    return _TEXT.match(content_type.strip().lower()) is not None


def _request(body: bytes, content_type: str, url: str) -> dict[str, str]:
    return {"body": base64.b64encode(body).decode(), "content_type": content_type, "url": url}


def checked_url(url: str) -> str:
    """Normalize an http(s) URL. Raises `FetchError` for a user name, an invalid host, another scheme or a long URL."""
    if len(url) > _MAX_URL_CHARS:
        raise FetchError(f"the URL is longer than {_MAX_URL_CHARS} characters")
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise FetchError(f"this is not a URL: {error}") from error
    if parts.scheme.lower() not in ("http", "https"):
        raise FetchError("only http:// and https:// pages are fetched")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc or "\\" in url:
        raise FetchError("a URL may not contain a user name")
    is_odd = any(character.isspace() or ord(character) < 33 for character in parts.geturl())
    if not host or len(host) > _MAX_HOST_CHARS or is_odd:
        raise FetchError("this is not a URL")
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode()
    except UnicodeError as error:
        raise FetchError(f"{host!r} is not a host name") from error
    bracketed = f"[{ascii_host}]" if ":" in ascii_host else ascii_host
    netloc = bracketed if port is None else f"{bracketed}:{port}"
    quoted = re.sub(r"[^\x21-\x7e]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), parts.path)
    query = re.sub(r"[^\x21-\x7e]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), parts.query)
    return f"{parts.scheme.lower()}://{netloc}{quoted or '/'}" + (f"?{query}" if query else "")
