"""What a box can reach: nothing, some hosts, or all, through connections that the owner makes."""

import asyncio
import socket
from dataclasses import replace

import pytest
import pytest_asyncio

from agentloop.boxes import BoxError, Network
from agentloop.boxes.network import addresses

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


def request(line, port=3128, host="127.0.0.1"):
    """Return a command that sends a request and prints the answer."""
    return f"printf '{line} HTTP/1.1\\r\\nConnection: keep-alive\\r\\n\\r\\n' | nc -w 10 {host} {port}"


def own_address():
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # documentation addresses; nothing is sent
        return probe.getsockname()[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server():
    """Start a server that answers with the first two lines of each request, and yield its address."""

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        body = b" ".join(head.split(b"\r\n")[:2]) + b"\n"
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    yield f"{own_address()}:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.fixture
def far(server, monkeypatch):
    """Yield the address of the server, which counts as one of another machine."""
    monkeypatch.setattr(addresses, "own_ranges", lambda: [])
    return server


async def test_no_network_leads_nowhere(box, server):
    host, _, port = server.partition(":")
    assert (await box.exec(request("GET /page", port, host), timeout=20)).stdout == ""


async def test_an_allowed_host_is_reached_and_no_other(provider, spec, far):
    host = far.partition(":")[0]
    box = await provider.start(replace(spec, network=Network(mode="allowlist", hosts=(host, "*.example.org"))))

    async def told(line):
        return (await box.exec(request(line))).stdout

    try:
        assert (await box.exec("echo $http_proxy $HTTPS_PROXY")).stdout.split() == ["http://127.0.0.1:3128"] * 2
        assert (await told(f"GET http://{far}/page?a=1")).endswith("\r\nGET /page?a=1 HTTP/1.1 Connection: close\n")
        assert (await told(f"GET http://{far}")).endswith("GET / HTTP/1.1 Connection: close\n")
        tunnel = f"CONNECT {far} HTTP/1.1\\r\\n\\r\\nGET /tunnel"
        assert (await told(tunnel)).endswith("GET /tunnel HTTP/1.1 Connection: keep-alive\n")
        refusal = f"This box may not reach pypi.org, only: {host}, *.example.org."
        for line in ("CONNECT pypi.org:443", "GET http://pypi.org/simple/"):
            answer = await told(line)
            assert answer.startswith("HTTP/1.1 403 Forbidden")
            assert refusal in answer
        assert "no.example.org:80 cannot be reached" in await told("GET http://no.example.org/")
        for line in ("hello", "GET /page", "CONNECT pypi.org", "GET https://pypi.org/"):
            assert (await told(line)).startswith("HTTP/1.1 400 Bad Request")
    finally:
        await box.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "[::1]", "0.0.0.0", own_address()])
async def test_this_machine_itself_is_never_reached(provider, spec, server, host):
    hosts = ("127.0.0.1", "localhost", "169.254.169.254", "::1", "0.0.0.0", f"{own_address()}/32", own_address())
    box = await provider.start(replace(spec, network=Network(mode="allowlist", hosts=hosts)))
    try:
        port = server.partition(":")[2]
        assert "which no box may reach" in (await box.exec(request(f"CONNECT {host}:{port}"))).stdout
    finally:
        await box.stop()


async def test_a_range_of_addresses_is_allowed(provider, spec, far):
    box = await provider.start(
        replace(spec, network=Network(mode="allowlist", hosts=("10.0.0.0/8", f"{own_address()}/32")))
    )
    try:
        assert "GET /page" in (await box.exec(request(f"GET http://{far}/page"))).stdout
        assert "may not reach 192.0.2.1" in (await box.exec(request("CONNECT 192.0.2.1:80"))).stdout
    finally:
        await box.stop()


async def test_a_port_can_lead_to_an_address(box, far):
    host, _, port = far.partition(":")
    await box.forward(8080, host, int(port))
    assert "GET /page HTTP/1.1" in (await box.exec(request("GET /page", 8080))).stdout
    with pytest.raises(BoxError, match="Address already in use"):
        await box.forward(8080, host, int(port))


async def test_many_connections_at_once(box, far):
    host, _, port = far.partition(":")
    await box.forward(8081, host, int(port))
    command = f"for i in 1 2 3 4 5 6 7 8; do {request('GET /page', 8081)} & done; wait"
    assert (await box.exec(command)).stdout.count("GET /page HTTP/1.1") == 8
