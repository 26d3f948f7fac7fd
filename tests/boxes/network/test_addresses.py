"""Which addresses are of this machine, in every way to write them."""

import socket

import pytest

from agentloop.boxes.network import addresses
from agentloop.boxes.network.addresses import OwnAddressError, other_address
from tests.boxes.network.test_network import own_address

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "localhost",
        "::1",
        "0.0.0.0",
        "::",
        "0",
        "2130706433",
        "0x7f.1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "fe80::1",
        own_address(),
        f"::ffff:{own_address()}",
    ],
)
async def test_addresses_of_this_machine_are_refused(host):
    with pytest.raises(
        OwnAddressError, match="is an address of the machine that runs this box, which no box may reach"
    ):
        await other_address(host, 80)


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7", "10.255.255.7"])
async def test_others_are_returned_as_they_are(host):
    assert await other_address(host, 80) == host


@pytest.mark.slow
async def test_a_name_is_resolved_to_an_address_of_another_machine(monkeypatch):
    def resolve(*_, **__):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 80)) for each in (own_address(), "203.0.113.7")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert await other_address("mixed.example", 80) == "203.0.113.7"


@pytest.mark.slow
async def test_the_name_of_this_machine_is_refused(monkeypatch):
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (own_address(), 80))],
    )
    with pytest.raises(OwnAddressError, match=r"^this-machine is an address"):
        await other_address("this-machine", 80)


@pytest.mark.slow
async def test_own_ranges_have_loopback_and_the_interface():
    texts = {str(each) for each in addresses.own_ranges()}
    assert {"127.0.0.0/8", f"{own_address()}/32"} <= texts
