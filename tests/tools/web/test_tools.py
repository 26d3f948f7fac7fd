"""The two tools, as a model calls them."""

import asyncio
import json
import math

import pytest

from agentloop.errors import FailureKind, UserError
from agentloop.tools.toolset import Toolset
from agentloop.tools.web.tools import WebFetch, WebSearch
from agentloop.types.messages import ToolCall

pytestmark = pytest.mark.slow


def call(tool, **arguments):
    async def run():
        toolset = Toolset([tool])
        await toolset.start()
        sessions = toolset.sessions("t", task={}, seed=0)
        try:
            return await sessions.call(ToolCall(tool.name, arguments, "call_0"), math.inf)
        finally:
            await sessions.close()
            await toolset.shutdown()

    return asyncio.run(run())


def respond(connection, body: bytes, content_type: str = "application/json", status: str = "200 OK") -> None:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


ANSWERS = {
    "serper": {"organic": [{"title": "T", "link": "http://a.b", "snippet": "S"}]},
    "brave": {"web": {"results": [{"title": "T", "url": "http://a.b", "description": "S"}]}},
    "tavily": {"results": [{"title": "T", "url": "http://a.b", "content": "S"}]},
    "searxng": {"results": [{"title": "T", "url": "http://a.b", "content": "S"}] * 9},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_search_provider_works(name, serving):
    with serving(lambda path, c: respond(c, json.dumps(ANSWERS[name]).encode())) as port:
        result = call(WebSearch(name, url=f"http://127.0.0.1:{port}/search", key="k", topk=2), query="rain")
    one = "1. T\nhttp://a.b\nS"
    assert result.content == (one if name != "searxng" else f"{one}\n\n{one.replace('1', '2', 1)}")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{}", "429 Too Many", "HTTP 429"),
        (b"no json", "200 OK", "cannot be read"),
        (b'{"results": 7}', "200 OK", "cannot be read"),
        (b"[]", "200 OK", "cannot be read"),
    ],
)
def test_failed_search_is_a_tool_failure(body, status, message, serving):
    with serving(lambda path, c: respond(c, body, status=status)) as port:
        result = call(WebSearch("searxng", url=f"http://127.0.0.1:{port}/secret-path"), query="rain")
    assert result.failure is FailureKind.TOOL
    assert message in result.content
    assert "secret-path" not in result.content


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (WebSearch, {"topk": 0}, "topk"),
        (WebSearch, {"url": "127.0.0.1:8080/search"}, "url of web_search must start with http"),
        (WebSearch, {"key": "kéy"}, "printable ASCII"),
        (WebSearch, {"key": "key\n"}, "printable ASCII"),
        (WebFetch, {"timeout": 0.0}, "must be above 0"),
        (WebFetch, {"max_chars": 0}, "must be above 0"),
        (WebFetch, {"max_bytes": -1}, "must be above 0"),
        (WebFetch, {"workers": 0}, "must be above 0"),
        (WebFetch, {"max_redirects": -1}, "max_redirects"),
        (WebFetch, {"ports": []}, "ports"),
    ],
)
def test_settings_with_which_every_call_would_fail_are_refused(tool, options, message):
    provider = {"provider_name": "searxng", "url": "http://127.0.0.1/search"} if tool is WebSearch else {}
    with pytest.raises(UserError, match=message):
        tool(**{**provider, **options})


def test_a_hit_may_have_no_title(serving):
    answer = {"results": [{"title": None, "url": "http://a.b", "content": None}]}
    with serving(lambda path, c: respond(c, json.dumps(answer).encode())) as port:
        result = call(WebSearch("searxng", url=f"http://127.0.0.1:{port}/search"), query="rain")
    assert result.content == "1. \nhttp://a.b\n"


def test_invalid_settings_are_named(monkeypatch):
    monkeypatch.delenv("AGENTLOOP_WEB_SEARCH_KEY", raising=False)
    with pytest.raises(UserError, match="AGENTLOOP_WEB_SEARCH_KEY"):
        WebSearch("brave")
    with pytest.raises(UserError, match="needs url"):
        WebSearch("searxng")
    with pytest.raises(UserError, match="Did you mean 'brave'"):
        WebSearch("brav")
    with pytest.raises(UserError, match="Invalid network"):
        WebFetch(allowed_networks=["x"])


def test_page_is_truncated_to_the_limit(serving):
    page = b"<html><title>Rain</title><body><p>" + b"It rains. " * 5000 + b"</p></body></html>"
    with serving(lambda path, c: respond(c, page, "text/html")) as port:
        tool = WebFetch(ports=[port], allowed_networks=["127.0.0.0/8"], max_chars=200)
        result = call(tool, url=f"http://127.0.0.1:{port}/x")
    assert result.content.startswith(f"Rain\nhttp://127.0.0.1:{port}/x\n\nIt rains.")
    assert result.content.endswith("\n[the rest of the page is cut]")
    assert len(result.content) < 240


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://169.254.169.254/latest", "file:///etc/passwd", "x"])
def test_forbidden_url_gives_feedback(url):
    result = call(WebFetch(), url=url)
    assert result.is_error
    assert result.failure is None
    assert result.content.startswith("Error: ")
