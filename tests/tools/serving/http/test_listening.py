"""The listening socket of a server."""

import socket

import pytest

from agentloop.tools.serving.http.listening import address_of, open_listener

pytestmark = pytest.mark.slow


def test_connections_send_without_waiting_for_acknowledgements():
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_address_names_the_port_that_was_free():
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert address_of(listener) == f"http://127.0.0.1:{port}"
