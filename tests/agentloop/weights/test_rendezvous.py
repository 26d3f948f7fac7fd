import socket

import pytest
from torch.distributed import TCPStore

from agentloop.weights.rendezvous import listening_store

pytestmark = pytest.mark.slow


def test_only_one_network_reaches_a_store():
    store = listening_store("127.0.0.1")
    TCPStore("127.0.0.1", store.port, is_master=False).set("name", "value")
    assert store.get("name") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)


def test_an_address_that_a_router_translates_is_reached_too():
    store = listening_store("192.0.2.77")  # of no host: kept for documentation
    socket.create_connection(("127.0.0.1", store.port), timeout=5).close()


def test_nobody_is_reached_when_the_store_is_gone():
    store = listening_store("127.0.0.1")
    port = store.port
    del store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
