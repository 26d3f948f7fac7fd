"""`Proxy`: an HTTP proxy for one box, which may reach only some hosts. Programs find it by variables (http_proxy)."""

from __future__ import annotations

import asyncio
import ipaddress
from urllib.parse import urlsplit

from agentloop.boxes.interface.hosts import normal_host
from agentloop.boxes.interface.spec import Network
from agentloop.boxes.network.addresses import OwnAddressError, other_address
from agentloop.boxes.network.relay import join

PORT = 3128
"""Port of the box that the proxy listens on, a common choice for proxies."""
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_HOP_BY_HOP = (b"connection:", b"proxy-connection:", b"keep-alive:")


class RefusedError(Exception):
    """The box may not reach a host."""


def variables() -> dict[str, str]:
    """Return the environment variables that point programs in the box to the proxy."""
    address = f"http://127.0.0.1:{PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy")
    own = {"no_proxy": "localhost,127.0.0.1,::1"}
    found = dict.fromkeys(names, address) | own
    return found | {name.upper(): value for name, value in found.items()}


class Proxy:
    """Serves requests of a box: CONNECT, and requests with whole URLs (RFC 9110, section 7.6; RFC 9112, section 3.2).

    No box reaches addresses of this machine, or link-local addresses, which serve credentials on many clouds.
    """

    def __init__(self, network: Network) -> None:
        assert network.mode != "none"
        self._hosts = None if network.mode == "public" else tuple(map(normal_host, network.hosts))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. Raises `OSError` and the errors of `StreamReader.readuntil`."""
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        try:
            method, target, version = line.decode("ascii").split(" ")
            host, port, path = _split(method, target)
        except ValueError:
            await _answer(writer, "400 Bad Request", "This is a proxy: send CONNECT, or a request with a whole URL.")
            return
        try:
            other = await self._connect(host, port)
        except (RefusedError, OwnAddressError) as error:
            await _answer(writer, "403 Forbidden", str(error))
            return
        except (OSError, UnicodeError) as error:
            await _answer(
                writer, "502 Bad Gateway", f"{host}:{port} cannot be reached: {error or type(error).__name__}."
            )
            return
        if path is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            kept = [each for each in fields.split(b"\r\n") if each and not each.lower().startswith(_HOP_BY_HOP)]
            first = f"{method} {path} {version}".encode()
            other[1].write(b"\r\n".join([first, *kept, b"Connection: close", b"", b""]))
        await join(reader, writer, *other)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host. Raises `RefusedError` or `OwnAddressError` if the box may not reach it.

        Raises `OSError` if the connection fails, `UnicodeError` for a name that no host can have.
        """
        name = host.lower().rstrip(".")
        if self._hosts is not None and not any(_matches(name, pattern) for pattern in self._hosts):
            raise RefusedError(f"This box may not reach {host}, only: {', '.join(self._hosts) or 'no host at all'}.")
        async with asyncio.timeout(_CONNECT_SECONDS):
            return await asyncio.open_connection(await other_address(host, port), port)


def _split(method: str, target: str) -> tuple[str, int, str | None]:
    """Return host, port and path of a request; no path for CONNECT. Raises `ValueError`."""
    if method == "CONNECT":
        parts = urlsplit(f"//{target}")
        if not parts.hostname or parts.port is None:
            raise ValueError(target)
        return parts.hostname, parts.port, None
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(target)
    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    return parts.hostname, parts.port or 80, path


def _matches(name: str, pattern: str) -> bool:
    """Return whether a host matches a pattern: a name, `*.` and a name, an address, or a range of addresses."""
    if "/" in pattern:
        try:
            return ipaddress.ip_address(name) in ipaddress.ip_network(pattern)
        except ValueError:
            return False
    return name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:]))


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
