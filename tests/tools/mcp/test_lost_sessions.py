"""Servers that end their sessions: calls fail at once, and shared sessions are opened again."""

import json
import math
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentloop.errors import FailureKind
from agentloop.tools.mcp.server import McpServer
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow

SERVER = """
import json, os, sys, time

for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    result = {"protocolVersion": "2025-06-18", "capabilities": {}}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        result = {"tools": [{"name": "run", "inputSchema": schema}]}
    if method == "tools/call":
        exec(message["params"]["arguments"]["what"])
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def command_line() -> list[str]:
    return [sys.executable, "-c", SERVER]


async def run(sessions, what: str):
    return await sessions.call(ToolCall("run", {"what": what}, "call_0"), math.inf)


async def test_a_dead_process_that_all_share_is_replaced():
    toolset = Toolset(McpServer(command_line(), stateful=False).tools())
    await toolset.start()
    old, new = (toolset.sessions(name, task={}, seed=0) for name in ("old", "new"))
    first = await run(old, "pass")
    assert (await run(old, "sys.exit('tired')")).failure is FailureKind.TOOL
    again, other = await run(old, "pass"), await run(new, "pass")
    assert again.failure is other.failure is None
    assert first.content != again.content == other.content
    assert await old.close() == await new.close() == []
    await toolset.shutdown()


async def test_the_state_of_a_dead_process_is_not_replaced():
    toolset = Toolset(McpServer(command_line()).tools())
    sessions = toolset.sessions("t", task={}, seed=0)
    for what in ("sys.exit('tired')", "pass"):
        assert "exited: tired" in (await run(sessions, what)).content
    await sessions.close()


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("print('x' * (65 << 20), flush=True); time.sleep(60)", "wrote a line of more than 64 MiB"),
        ("os.close(1); time.sleep(60)", "closed its input or output"),
    ],
)
async def test_a_server_that_cannot_be_read_fails_its_calls_at_once(what, problem):
    toolset = Toolset(McpServer(command_line()).tools())
    sessions = toolset.sessions("t", task={}, seed=0)
    began = time.monotonic()
    for each in (what, "pass"):
        result = await run(sessions, each)
        assert result.failure is FailureKind.TOOL
        assert problem in result.content
    assert time.monotonic() - began < 20
    await sessions.close()


@pytest.fixture
def http_server():
    """A server with the set of its open sessions, which has one tool, `run`."""
    opened = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            session = self.headers.get("mcp-session-id")
            result = {"protocolVersion": "2025-06-18", "capabilities": {}}
            if message["method"] == "initialize":
                session = f"session-{time.monotonic_ns()}"
                opened.add(session)
            elif session not in opened:
                return self.answer(404, {})
            if message["method"] == "tools/list":
                result = {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]}
            if message["method"] == "tools/call":
                result = {"content": [{"type": "text", "text": session}]}
            return self.answer(200, {"jsonrpc": "2.0", "id": message.get("id"), "result": result}, session)

        def do_DELETE(self):
            opened.remove(self.headers["mcp-session-id"])
            self.answer(200, {})

        def answer(self, status, body, session=""):
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            if session:
                self.send_header("mcp-session-id", session)
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp", opened
    server.shutdown()
    server.server_close()


async def test_a_session_that_a_server_has_forgotten_is_opened_again(http_server):
    url, opened = http_server
    toolset = Toolset(McpServer(url=url, stateful=False).tools())
    await toolset.start()
    sessions = toolset.sessions("t", task={}, seed=0)
    first = (await run(sessions, "")).content
    opened.clear()  # as a restart does
    lost = await run(sessions, "")
    assert lost.failure is FailureKind.TOOL
    assert "has ended the session" in lost.content
    second = await run(sessions, "")
    assert opened == {second.content} != {first}
    assert await sessions.close() == []
    await toolset.shutdown()
    assert opened == set()
