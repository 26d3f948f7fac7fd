"""Output of commands arrives whole however slow the engine is, tested with an engine of our own."""

import asyncio
import json
import socket
import socketserver
import tempfile
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from agentloop.boxes.docker.engine import BoxEngine
from agentloop.boxes.docker.streams import Streams
from agentloop.sandboxes.levels.docker_engine import Engine

EARLY = b"\x01\0\0\0\0\0\0\x06early\n"


class QuickEngine(BaseHTTPRequestHandler):
    """Sends the output of a command in one piece with the headers of its answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer({"ApiVersion": "1.41"})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/start"):
            self._answer({"Id": "command"})
            return
        self.connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n" + EARLY)
        self.close_connection = True

    def _answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "here"

    def log_message(self, *arguments):
        pass


class QuickServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def quick_engine():
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # the path of a socket must be short
        QuickServer(f"{folder}/engine", QuickEngine) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        engine = BoxEngine(Engine.connect(f"unix://{folder}/engine"))
        yield engine
        engine.close()
        server.shutdown()


async def _pieces(streams, status, left_behind):
    return [piece async for piece in streams.until(status, left_behind)]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_output_that_comes_with_the_headers_is_not_lost(quick_engine):
    _, connection, early = await asyncio.to_thread(quick_engine.execute, "box", ["echo", "early"])
    streams = Streams(connection, early, tty=False)
    assert await streams.read() == ("stdout", b"early\n")
    assert await streams.read() is None
    streams.close()


@pytest.mark.asyncio
async def test_output_after_the_end_of_a_command_that_left_nothing_is_waited_for():
    ours, theirs = socket.socketpair()
    streams = Streams(ours, tty=False)

    async def nothing_left():
        asyncio.get_running_loop().call_soon(_write_and_close, theirs)
        return False

    assert await _pieces(streams, lambda: 126, nothing_left) == [("stdout", b"early\n")]
    streams.close()


@pytest.mark.asyncio
async def test_output_has_no_end_while_programs_go_on_and_none_of_the_command_is_lost():
    ours, theirs = socket.socketpair()
    streams = Streams(ours, tty=False)

    async def some_left():
        theirs.sendall(EARLY + EARLY[:-1])
        return True

    assert await _pieces(streams, lambda: 0, some_left) == [("stdout", b"early\n")]
    streams.close()
    theirs.close()


@pytest.mark.asyncio
async def test_a_reader_sees_the_end_when_its_connection_is_closed():
    ours, theirs = socket.socketpair()
    streams = Streams(ours, tty=True)
    reading = asyncio.ensure_future(streams.read())
    await asyncio.sleep(0)
    streams.close()
    assert await reading is None
    theirs.close()


def _write_and_close(connection):
    connection.sendall(EARLY)
    connection.close()
