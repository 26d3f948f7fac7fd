"""The network between the hosts of a learner: which interface its ranks use, and the end of what nobody answers."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress

_ADDRESS_OF_INTERFACE = 0x8915
"""SIOCGIFADDR of Linux."""


def use_interface_of(address: str) -> None:
    """Have gloo and NCCL talk over the interface with this address of this host, where nothing else is set.

    By themselves they take what the host's name resolves to, often the loopback, or whatever interface comes first.
    """
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # with `=` it is a name, not how names begin


def interface_of(address: str) -> str | None:
    """The interface of this host that has an IPv4 address; None where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(any_socket.fileno(), _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def hang_up(address: str, port: int | None = None) -> None:
    """End this process's connections to a host that is gone, or to this port of a host: who waits for an answer from
    there hears that there is none. The network itself says so after a quarter of an hour, and gloo cannot be told to
    stop waiting."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                host, at, *_ = connection.getpeername()
                if host.removeprefix("::ffff:") == address and port in (None, at):
                    connection.shutdown(socket.SHUT_RDWR)


def is_reachable(address: str, port: int, seconds: float) -> bool:
    """Whether something answers there."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except OSError:
        return False
    return True
