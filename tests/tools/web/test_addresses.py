import asyncio
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.tools.web.addresses import AddressError, PublicOnly, is_public, resolve

PRIVATE = [
    *(
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
    ),
    *("100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *(
        "169.254.169.254",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
    ),
    *("168.63.129.16", "192.0.0.192", "192.0.0.9", "192.88.99.1", "fec0::1", "64:ff9b:1::a00:1", "::a00:1", "::7f00:1"),
    *("3fff::1", "5f00::1", "2001:20::1", "100::1", "4000::1", "2002:a83f:8110::1", "64:ff9b::a83f:8110"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1"),
]


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_rejected(text):
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_addresses_are_accepted(text):
    assert is_public(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_embedded_ipv4_addresses_are_checked(address):
    number = int(address)
    for outer in (0xFFFF << 32 | number, int(ipaddress.ip_address("64:ff9b::")) | number):
        assert is_public(ipaddress.IPv6Address(outer)) == is_public(address)


def connect(network: PublicOnly, host: str, port: int = 80) -> None:
    asyncio.run(network.connect_tcp(host, port, timeout=2))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "0", "0x7f.1", "2130706433", "017700000001", "127.1", "0x7f000001", "::1", "[::1]"),
        *("169.254.169.254", "metadata.google.internal", "no-such-host.invalid", "", "a" * 300, "ex ample"),
    ],
)
def test_every_spelling_of_localhost_is_rejected(host):
    with pytest.raises(AddressError):
        connect(PublicOnly([80]), host)


def test_other_ports_are_rejected():
    with pytest.raises(AddressError, match="port 22 is not one of 80, 443"):
        connect(PublicOnly([443, 80]), "1.1.1.1", 22)


def test_name_with_one_private_address_is_rejected():
    async def answers(host: str, port: int) -> list[str]:
        return ["93.184.215.14", "10.0.0.1"]

    with pytest.raises(AddressError, match="not on the public internet"):
        connect(PublicOnly([80], answers), "example.test")


@pytest.mark.slow
def test_connection_uses_the_checked_address(serving):
    """A name server that gives another answer the second time is not asked a second time."""
    asked = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    with serving(lambda path, connection: None) as port:
        connect(PublicOnly([port], rebinding, allowed=["127.0.0.1/32"]), "example.test", port)
        assert asked == ["example.test"]
        with pytest.raises(AddressError):
            connect(PublicOnly([port], rebinding, allowed=["127.0.0.1/32"]), "example.test", port)


@pytest.mark.slow
def test_the_next_address_is_used_if_one_refuses(serving):
    async def answers(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    with serving(lambda path, connection: None) as port:
        connect(PublicOnly([port], answers, allowed=["127.0.0.0/8"]), "example.test", port)


def test_names_are_resolved_by_the_system():
    assert asyncio.run(resolve("localhost", 80))
