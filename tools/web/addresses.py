"""Connect only to allowed addresses.

A name is resolved once, and the connection uses the checked address, so a second DNS answer (DNS rebinding) changes
nothing. See OWASP, Server-Side Request Forgery Prevention.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import httpcore

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")
_UNICAST = ipaddress.ip_network("2000::/3")
"""IPv6 addresses of the public internet. All others are special or reserved."""
_DENIED = [
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's metadata and DNS
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # protocol assignments
        "3fff::/20",  # documentation
    )
]
"""Ranges that no web page needs, although `ipaddress` calls them global in some version.

https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry
"""


class AddressError(Exception):
    """The address is not allowed. The message is for the model."""


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet. IPv4 addresses inside IPv6 addresses are checked, too."""
    if isinstance(address, ipaddress.IPv6Address):
        for inner in (address.ipv4_mapped, address.teredo and address.teredo[1]):
            if inner:
                return is_public(inner)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address in _SIX_TO_FOUR:
            return is_public(ipaddress.IPv4Address((int(address) >> 80) & 0xFFFFFFFF))
        if address not in _UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _DENIED)


async def resolve(host: str, port: int) -> list[str]:
    """Resolve a host name. Raises `AddressError`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"the host {host!r} is not known") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class PublicOnly(httpcore.AsyncNetworkBackend):
    """Network backend that connects only to public addresses on allowed ports."""

    def __init__(self, ports: Iterable[int], resolve: Resolve = resolve, allowed: Iterable[str] = ()) -> None:
        """Allow `ports` of public addresses and of the networks `allowed` (CIDR)."""
        self._backend = httpcore.AnyIOBackend()
        self._ports = frozenset(ports)
        self._resolve = resolve
        self._allowed = [ipaddress.ip_network(network) for network in allowed]

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        if port not in self._ports:
            raise AddressError(f"port {port} is not one of {', '.join(map(str, sorted(self._ports)))}")
        addresses = await self._resolve(host, port)
        for text in addresses:  # refuse the name if any of its addresses is not public
            address = ipaddress.ip_address(text.partition("%")[0])
            if not is_public(address) and not any(address in network for network in self._allowed):
                raise AddressError(f"the host {host!r} is not on the public internet")
        if not addresses:
            raise AddressError(f"the host {host!r} has no address")
        for text in addresses[:-1]:
            with suppress(httpcore.ConnectError):  # such as IPv6 without a route
                return await self._backend.connect_tcp(text, port, *args, **options)
        return await self._backend.connect_tcp(addresses[-1], port, *args, **options)

    async def connect_unix_socket(self, path: str, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        raise AddressError("sockets of this machine are not allowed")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
