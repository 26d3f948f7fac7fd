"""TCP stores of torch for rendezvous, reachable from one network only."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_ANY = "0.0.0.0"


def listening_store(address: str, members: int | None = None) -> TCPStore:
    """Return a store in this process, at a free port (`.port`) of an address of this host, without waiting for members.

    By default torch listens on all addresses, and its store has no password, so every client may read and write. This
    store listens only on `address`, or on all addresses if no interface has it (for example behind NAT).
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
