"""Event streams of a server over HTTP, as the transport reads them."""

import json

import httpx
import pytest

from agentloop.tools.mcp import http
from agentloop.tools.mcp.http import HttpTransport
from agentloop.tools.mcp.protocol import McpError


async def answer_to(monkeypatch, chunks):
    async def stream():
        for chunk in chunks:
            yield chunk

    def respond(request):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream())

    transport = HttpTransport("http://127.0.0.1:1/mcp", {}, 5.0)
    await transport.open()
    client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    monkeypatch.setattr(transport, "_client", client)
    try:
        return await transport.request({"jsonrpc": "2.0", "id": 1, "method": "x"}, lambda message: None)
    finally:
        await client.aclose()


@pytest.mark.parametrize("chunk", [b"data: " + bytes(1000), b"data: 1\n" * 100, b'data: {"method": "x"}\n\n' * 50])
async def test_an_endless_stream_is_ended(monkeypatch, chunk):
    monkeypatch.setattr(http, "_MAX_BYTES", 1 << 20)
    with pytest.raises(McpError, match="the answer is larger than 1 MiB"):
        await answer_to(monkeypatch, (chunk for _ in range(10_000)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("width", [1, 7, 1000])
async def test_only_line_breaks_end_a_line(monkeypatch, end, width):
    message = {"jsonrpc": "2.0", "id": 1, "result": {"text": "one\u2028two\u0085three\u00e9"}}
    text = end.join([": hello", "event: message", f"data: {json.dumps(message, ensure_ascii=False)}", "", ""])
    content = text.encode()
    chunks = [content[start : start + width] for start in range(0, len(content), width)]
    assert await answer_to(monkeypatch, chunks) == message
