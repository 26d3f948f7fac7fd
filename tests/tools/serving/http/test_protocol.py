"""Clients that never finish their headers, or never read the answer."""

import asyncio
from contextlib import suppress

import pytest

from agentloop.tools.serving.http.protocol import BoundedProtocol

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 0.3)
    monkeypatch.setattr(BoundedProtocol, "stall_seconds", 0.5)


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(10):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
    return True


@pytest.mark.parametrize("begun", [b"", b"POST /run_code HT", b"POST /run_code HTTP/1.1\r\nhost: localhost\r\nx: "])
async def test_missing_headers_time_out(by_hand, begun):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(begun)
        assert await closed(reader)
        writer.close()
        assert (await client.run())["status"] == "Success"


async def test_missing_headers_of_a_later_request_time_out(by_hand):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b'"pong"')).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /v1/pi")
        assert await closed(reader)
        writer.close()


async def test_trickled_headers_time_out(by_hand):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(b"POST /run_code HTTP/1.1\r\n")
        ending = asyncio.create_task(closed(reader))
        async with asyncio.timeout(10):
            while not ending.done():
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.05)
        writer.close()


async def test_endless_headers_are_rejected(by_hand):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(
            b"GET /v1/ping HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(9000))
        )
        assert await closed(reader)
        writer.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\nx: ",
        b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\n",
        b"GET /",
        b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ",
        b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1;",
    ],
)
async def test_endless_part_of_a_request_is_cut_off(begun, by_hand, monkeypatch):
    """The daemon bounds what it reads, with a token and without."""
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 600)
    async with by_hand(token="s3cret") as (client, _):
        received = []
        feed = BoundedProtocol.data_received
        monkeypatch.setattr(
            BoundedProtocol, "data_received", lambda self, data: received.append(len(data)) or feed(self, data)
        )
        reader, writer = await client.raw(begun)
        reading = asyncio.create_task(closed(reader))
        with suppress(ConnectionError):
            for _ in range(512):
                writer.write(b"a" * (1 << 14))
                await writer.drain()
        assert await reading
        assert sum(received) < 1 << 20
        writer.close()


async def test_number_of_headers_is_limited(by_hand, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 600)
    async with by_hand() as (client, _):
        for count, status in ((1000, b"200"), (3000, b"400")):
            head = b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + b"a:\r\n" * count + b"\r\n"
            reader, writer = await client.raw(head)
            assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
            writer.close()


async def test_number_of_connections_is_limited(by_hand, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_seconds", 600)
    monkeypatch.setattr(BoundedProtocol, "spare_connections", 2)
    async with by_hand(max_connections=3) as (client, _):
        opened = [await client.raw(b"") for _ in range(5)]
        reader, writer = await client.raw(b"")
        assert await closed(reader)
        assert not any(other.at_eof() for other, _ in opened)
        for each in (writer, *(each for _, each in opened)):
            each.close()


async def test_body_in_many_small_chunks_is_read(by_hand):
    async with by_hand() as (client, sandbox):

        async def chunks():
            for byte in b'{"code": "' + b"x" * 20_000 + b'"}':
                yield bytes([byte])

        response = await client.post("/run_code", content=chunks())
        assert response.json()["status"] == "Success"
        assert len(sandbox.executions[0].code) == 20_000


async def test_long_running_request_is_not_cut_off(by_hand):
    async with by_hand() as (client, sandbox):
        running = asyncio.create_task(client.run("wait"))
        await sandbox.begun.wait()
        await asyncio.sleep(0.6)
        sandbox.release.set()
        assert (await running)["status"] == "Success"


async def test_connection_may_idle_between_requests(by_hand):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b'"pong"')
        await asyncio.sleep(0.6)
        writer.write(b"GET /v1/ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b'"pong"')
        writer.close()


async def test_non_http_data_is_rejected(by_hand):
    async with by_hand() as (client, _):
        reader, writer = await client.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        assert await closed(reader)
        writer.close()
        assert (await client.run())["status"] == "Success"


async def test_unread_response_closes_the_connection(by_hand, make_result, until):
    async with by_hand() as (client, sandbox):
        sandbox.answer = lambda execution: make_result(stdout="x" * (32 << 20))
        _, writer = await client.send_only("POST", "/run_code", {"code": "x"})
        await until(lambda: sandbox.executions)
        await until(lambda: not client.server.server_state.connections)
        writer.close()


async def test_slowly_read_response_is_completed(by_hand, make_result):
    async with by_hand() as (client, sandbox):
        sandbox.answer = lambda execution: make_result(stdout="x" * (16 << 20))
        reader, writer = await client.send_only("POST", "/run_code", {"code": "x"})
        total = 0
        while total < 16 << 20:
            received = await reader.read(1 << 20)
            assert received, f"ended after {total} bytes"
            total += len(received)
            await asyncio.sleep(0.03)
        writer.close()
