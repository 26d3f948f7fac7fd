"""Stores of torch's at which processes meet, reachable from one network only."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_ANY = "0.0.0.0"


def listening_store(address: str, members: int | None = None) -> TCPStore:
    """A store in this process at a free port (`.port`) of an address of this host; it waits for nobody.

    Torch itself would listen on all addresses, and its store asks for no password: whoever connects reads and writes.
    So only those may that reach this address. Where no interface has it (a router translates it), all may.
    """
    from torch._C._distributed_c10d import TCPStore

    try:
        listening = socket.create_server((address, 0))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        address = _ANY
        listening = socket.create_server((address, 0))
    port = listening.getsockname()[1]
    return TCPStore(address, port, members, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
