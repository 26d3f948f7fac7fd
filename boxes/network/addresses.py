"""Tell the addresses of this machine from all others: no box may reach its services through the network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressRange = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOCAL, _ANYCAST = 1 << 31, 1 << 20
"""Flags of routes that end at this machine (RTF_LOCAL and RTF_ANYCAST of Linux)."""


class OwnAddressError(Exception):
    """A host is this machine, or link-local."""


async def other_address(host: str, port: int) -> str:
    """Resolve a host, and return an address of it that is not of this machine.

    Connect to that address, not to the name, which may have another one the next time. Raises `OwnAddressError` if
    there is none, and `OSError` or `UnicodeError` if the host is not known.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    own = own_ranges()
    for each in found:
        address = str(each[4][0])
        if not _is_refused(address, own):
            return address
    raise OwnAddressError(f"{host} is an address of the machine that runs this box, which no box may reach.")


def own_ranges() -> list[AddressRange]:
    """Return the addresses that lead to this machine, as its routes say. Raises `OSError`.

    Binding a socket to an address would be a simpler test, but with the setting ip_nonlocal_bind it always works.
    """
    found: list[AddressRange] = [*_own_ranges_of_version_4(Path("/proc/net/fib_trie").read_text())]
    with suppress(FileNotFoundError):  # this machine has no IPv6
        found += _own_ranges_of_version_6(Path("/proc/net/ipv6_route").read_text())
    return found


def _own_ranges_of_version_4(table: str) -> Iterator[ipaddress.IPv4Network]:
    """Each address is a line `|-- 10.0.0.2`, followed by its routes, such as `/32 host LOCAL`."""
    address = ""
    for line in table.splitlines():
        words = line.split()
        if words[0] == "|--":
            address = words[1]
        elif words[-1] == "LOCAL":
            yield ipaddress.IPv4Network(f"{address}{words[0]}")


def _own_ranges_of_version_6(table: str) -> Iterator[ipaddress.IPv6Network]:
    """Each line begins with an address and the length of its prefix, and ends with flags and an interface."""
    for line in table.splitlines():
        words = line.split()
        if int(words[8], 16) & (_LOCAL | _ANYCAST):
            yield ipaddress.IPv6Network((int(words[0], 16), int(words[1], 16)))


def _is_refused(address: str, own: list[AddressRange]) -> bool:
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    special = found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    return special or any(found in each for each in own)
