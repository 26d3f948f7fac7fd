"""Code that wants out: nothing leaves, and it fails at once."""

import asyncio
import socket

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_network_is_unreachable(box):
    code = """
import socket, time
for address in (("127.0.0.1", PORT), ("169.254.169.254", 80), ("1.1.1.1", 53), ("172.17.0.1", 80), HOST):
    start = time.monotonic()
    try:
        socket.create_connection(address, timeout=5)
        print("connected", address)
    except OSError:
        pass
    if time.monotonic() - start > 1:
        print("slow", address)
try:
    print("resolved", socket.getaddrinfo("example.com", 80))
except OSError:
    pass
for address in (("127.0.0.1", UDP), ("8.8.8.8", 53), ("224.0.0.1", 5353), ("255.255.255.255", 67)):
    try:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        udp.sendto(b"out", address)
    except OSError:
        pass
try:
    print("connected", socket.create_connection(("::1", PORT), timeout=5))
except OSError:
    pass
print("done")
"""
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("0.0.0.0", 0))
        udp.setblocking(False)
        own = socket.gethostbyname(socket.gethostname())
        code = code.replace("PORT", str(tcp.getsockname()[1])).replace("UDP", str(udp.getsockname()[1]))
        result = await box.run(code.replace("HOST", repr((own, tcp.getsockname()[1]))))
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    assert (result.stdout, result.stderr) == ("done\n", "")
    assert result.seconds < 5


async def test_host_interfaces_and_routes_are_hidden(box):
    code = """
import os
def lines(name):
    try:
        return open(f"/proc/net/{name}").read().splitlines()
    except OSError:
        return ["nothing"]
print({line.split(":")[0].strip() for line in lines("dev") if ":" in line} - {"lo"})
print([len(lines(name)) for name in ("route", "tcp", "udp", "arp")])
"""
    result = await box.run(code)
    assert (result.stdout, result.stderr) == ("set()\n[1, 1, 1, 1]\n", "")


@pytest.mark.claim("loopback")
async def test_loopback_works_with_private_ports(box):
    code = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("localhost", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("main.py" in urllib.request.urlopen("http://localhost:8000/").read().decode())
import time; time.sleep(0.3)
"""
    results = await asyncio.gather(box.run(code), box.run(code))
    assert [result.stdout for result in results] == ["True\n", "True\n"]
    assert (await box.run(code)).stdout == "True\n"
