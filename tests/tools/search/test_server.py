"""Against a real HTTP server that answers as the servers of others do."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentloop.errors import ToolError, UserError
from agentloop.tools.search.server import RetrievalServer

pytestmark = pytest.mark.slow


@contextmanager
def serving(answer: Callable[[dict], tuple[int, object]]) -> Iterator[tuple[str, list[dict]]]:
    asked: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = answer(asked[-1])
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/retrieve", asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def ask(url: str, *queries: str, topk: int = 2, **options) -> list:
    async def run():
        retriever = RetrievalServer(url, pause=0.001, **options)
        try:
            return await retriever.retrieve(queries, topk)
        finally:
            await retriever.close()

    return asyncio.run(run())


def document(number: int) -> dict:
    return {"id": str(number), "contents": f'"Title {number}"\nText {number}'}


def test_documents_with_scores_are_parsed():
    def answer(request):
        found = [{"document": document(i), "score": 1.5 - i} for i in range(request["topk"])]
        return 200, {"result": [found for _ in request["queries"]]}

    with serving(answer) as (url, asked):
        first, second = ask(url, "a", "b")
    assert asked == [{"queries": ["a", "b"], "topk": 2, "return_scores": True}]
    assert [(p.id, p.title, p.text, p.score) for p in first] == [
        ("0", "Title 0", "Text 0", 1.5),
        ("1", "Title 1", "Text 1", 0.5),
    ]
    assert first == second


def test_documents_without_scores_are_parsed():
    with serving(lambda request: (200, {"result": [[document(1)] for _ in request["queries"]]})) as (url, _):
        ((passage,),) = ask(url, "a")
    assert (passage.title, passage.text) == ("Title 1", "Text 1")
    assert passage.score != passage.score  # unknown


def test_single_query_server_gets_one_request_per_query():
    def answer(request):
        return (
            (422, {"detail": "query: field required"}) if "queries" in request else (200, {"result": [[document(1)]]})
        )

    with serving(answer) as (url, asked):
        assert [len(found) for found in ask(url, "a", "b")] == [1, 1]
    assert [request.get("query") for request in asked] == [None, "a", "b"]


def test_transient_failures_are_retried():
    answers = iter([(503, {}), (504, {}), (500, b"oops"), (200, {"result": [[document(1)]]})])
    with serving(lambda request: next(answers)) as (url, asked):
        assert len(ask(url, "a")[0]) == 1
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((503, {}), "does not answer: HTTP 503"),
        ((404, {}), "HTTP 404"),
        ((200, b"no json"), "is not JSON"),
        ((200, {"results": []}), "cannot be read"),
        ((200, {"result": []}), "0 results for 1 queries"),
        ((200, {"result": [[{"document": {}}]]}), "cannot be read"),
        ((200, {"result": [["text"]]}), "cannot be read"),
        ((200, [1]), "cannot be read"),
        ((422, {}), "accepts neither"),
    ],
)
def test_permanent_failures_are_reported(answer, message):
    with serving(lambda request: answer) as (url, _), pytest.raises(ToolError, match=message):
        ask(url, "a")


def test_unreachable_server_raises():
    with pytest.raises(ToolError, match="ConnectError"):
        ask("http://127.0.0.1:1/retrieve", "a")
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1/retrieve is not usable"):
        asyncio.run(RetrievalServer("http://127.0.0.1:1/retrieve", pause=0.001).start())
