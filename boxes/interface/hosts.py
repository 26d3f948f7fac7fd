"""Hosts of an allowlist: names, `*.` and a name, addresses, and ranges of addresses."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def normal_host(value: str) -> str:
    """Return a host of an allowlist in its normal form. Raises `ValueError`."""
    host = value.strip().lower().rstrip(".")
    problem = f"{value!r} must be a host name, '*.' and a host name, an IP address or a range of them"
    if not host or "%" in host or "[" in host:
        raise ValueError(problem)
    try:
        if "/" in host:
            return ip_network(host, strict=True).compressed
        if ":" in host:
            return ip_address(host).compressed
    except ValueError:
        raise ValueError(problem) from None
    name = host.removeprefix("*.")
    if name != host and re.fullmatch(r"[\d.]+", name):
        raise ValueError(problem)
    if not name or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(problem)
    return host
