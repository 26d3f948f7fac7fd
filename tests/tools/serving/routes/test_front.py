"""The front of every request: token, log, metrics and health."""

import asyncio
import json
import logging

import pytest

from agentloop.tools.serving.routes import front

pytestmark = pytest.mark.slow

ROUTES = ("/v1/health", "/metrics", "/v1/sessions", "/v1/tools", "/openapi.json", "/nowhere")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "bearers3cret", "Basic s3cret"])
async def test_requests_without_token_are_rejected(by_hand, header):
    async with by_hand(token="s3cret") as (client, sandbox):
        headers = {} if header is None else {"authorization": header}
        response = await client.post("/run_code", json={"code": "x"}, headers=headers)
        assert response.status_code == 401
        assert "Bearer TOKEN" in response.json()["detail"]
        assert sandbox.executions == []


async def test_routes_need_the_token_except_ping(by_hand):
    async with by_hand(token="s3cret") as (client, _):
        assert (await client.get("/v1/ping")).json() == "pong"
        for route in ROUTES:
            response = await client.get(route)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        client.headers["authorization"] = "Bearer s3cret"
        assert [(await client.get(route)).status_code for route in ROUTES] == [200] * 5 + [404]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_case_of_the_scheme_does_not_matter(by_hand, scheme):
    async with by_hand(token="s3cret") as (client, _):
        assert (await client.get("/v1/health", headers={"authorization": f"{scheme} s3cret"})).status_code == 200
        assert (await client.get("/v1/health", headers={"authorization": f"{scheme} S3CRET"})).status_code == 401


async def test_body_of_an_unauthorized_request_is_not_read(by_hand):
    async with by_hand(token="s3cret") as (client, _):
        head = b"POST /run_code HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000000\r\n\r\n"
        reader, writer = await client.raw(head)
        answer = await reader.read()  # until the daemon closes
        assert answer.startswith(b"HTTP/1.1 401")
        writer.close()


async def test_browser_pages_need_a_token(by_hand):
    async with by_hand() as (client, sandbox):
        response = await client.post("/run_code", content='{"code": "x"}', headers={"origin": "http://evil.example"})
        assert response.status_code == 403
        assert sandbox.executions == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost:80", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("LOCALHOST", 200), ("127.8.8.8:1", 200)),
        *(("evil.example", 403), ("evil.example:8080", 403), ("localhost.evil.example", 403), ("", 403), ("[", 403)),
        *(("10.0.0.1", 403), ("127.0.0.1.evil.example", 403), ("127.0.0.1@evil.example", 403)),
    ],
)
async def test_daemon_without_token_serves_this_machine_only(by_hand, host, status):
    """A page whose name is bound to 127.0.0.1 later (DNS rebinding) sends its own name, and no Origin for GET."""
    async with by_hand() as (client, _):
        assert (await client.get("/v1/health", headers={"host": host})).status_code == status
    async with by_hand(token="s3cret") as (client, _):
        headers = {"host": host, "authorization": "Bearer s3cret"}
        assert (await client.get("/v1/health", headers=headers)).status_code == 200


async def test_request_ids_are_returned_and_logged(by_hand):
    async with by_hand() as (client, _):
        response = await client.post("/run_code", json={"code": "x"}, headers={"x-request-id": "abc-1"})
        assert response.headers["x-request-id"] == response.json()["request_id"] == "abc-1"
        response = await client.post("/run_code", json={"code": "x"}, headers={"x-request-id": "a b"})
        assert response.headers["x-request-id"] == response.json()["request_id"] != "a b"


@pytest.fixture
def lines(caplog):
    """The access log, as it is written."""
    with caplog.at_level(logging.INFO, front.access_log.name):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == front.access_log.name]


async def test_each_request_logs_one_line_without_its_body(by_hand, lines, caplog):
    async with by_hand(token="TOKEN-7") as (client, sandbox):

        def answer(execution):
            raise RuntimeError(execution.code)

        client.headers["authorization"] = "Bearer TOKEN-7"
        await client.post("/run_code", json={"code": "CODE-7", "stdin": "STDIN-7", "files": {"a": "RklMRTc="}})
        await client.get("/v1/sessions/SESSION-7")
        await client.post("/run_code", json={"code": "x", "run_timeout": "FIELD-7"})
        sandbox.answer = answer
        broken = await client.post("/run_code", json={"code": "CODE-7"})
        assert broken.status_code == 500
        written = [json.loads(line) for line in lines()]
        assert [(line["route"], line["status"], line["outcome"]) for line in written] == [
            ("/run_code", 200, "success"),
            ("/v1/sessions/{id}", 404, ""),
            ("/run_code", 422, ""),
            ("/run_code", 500, ""),
        ]
        assert all(line["seconds"] > 0 for line in written)
        assert "RuntimeError" in caplog.text  # the log has the place, but not the message
        for secret in ("CODE-7", "STDIN-7", "FILE7", "RklMRTc", "SESSION-7", "FIELD-7", "TOKEN-7"):
            assert secret not in caplog.text
            assert secret not in broken.text


async def test_metrics_count_requests(by_hand, make_result):
    async with by_hand() as (client, sandbox):
        results = [{}, {"return_code": 1}, {"return_code": None, "timed_out": True}, {"return_code": 137, "oom": True}]
        for fields in results:
            sandbox.answer = lambda _, fields=fields: make_result(**fields, queue_seconds=0.3)
            await client.run()
        session = (await client.post("/v1/sessions", json={})).json()["id"]
        await client.post(f"/v1/sessions/{session}/run", json={"code": "x"})
        text = (await client.get("/metrics")).text
        for outcome, count in (("success", 2), ("failed", 1), ("timeout", 1), ("oom", 1)):
            assert f'agentloop_tools_executions_total{{outcome="{outcome}"}} {count}.0' in text
        assert 'agentloop_tools_requests_total{route="/run_code",status="200"} 4.0' in text
        assert 'agentloop_tools_requests_total{route="/v1/sessions/{id}/run",status="200"} 1.0' in text
        assert "agentloop_tools_queue_seconds_sum 1.2" in text
        assert "agentloop_tools_slots 4.0" in text
        assert "agentloop_tools_sessions 1.0" in text
        assert "process_open_fds" in text


async def test_unknown_paths_add_no_metric_labels(by_hand):
    async with by_hand() as (client, _):
        for n in range(20):
            assert (await client.get(f"/nowhere/{n}")).status_code == 404
        text = (await client.get("/metrics")).text
        assert 'route="other",status="404"} 20.0' in text
        assert "nowhere" not in text


async def test_health_reports_the_daemon_state(by_hand):
    async with by_hand(preload=("json",)) as (client, _):
        body = (await client.get("/v1/health")).json()
        assert body.items() >= {"status": "ok", "draining": False, "level": "by-hand", "slots": 4, "busy": 0}.items()
        assert body["preload"] == ["json"]
        assert body["version"]
        client.daemon.draining = True
        assert (await client.get("/v1/health")).json()["status"] == "draining"


async def test_openapi_document_lists_all_routes_and_bodies(by_hand):
    async with by_hand() as (client, _):
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert {"/run_code", "/run_jupyter", "/v1/ping", "/v1/sessions", "/v1/sessions/{id}/run"} <= set(paths)
        schema = paths["/run_code"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["required"] == ["code"]
        assert schema["properties"]["run_timeout"]["exclusiveMinimum"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("POST", "/run_cod", 404, "There is no route /run_cod. Did you mean '/run_code'? GET /docs lists all routes."),
        ("GET", "/redoc", 404, "There is no route /redoc. GET /docs lists all routes."),
        ("GET", "/run_code", 405, "/run_code does not take GET: use POST."),
        ("PUT", "/v1/sessions", 405, "/v1/sessions does not take PUT: use GET or POST."),
        ("PUT", "/v1/sessions/x", 405, "/v1/sessions/x does not take PUT: use DELETE or GET."),
        ("POST", "/openapi.json", 405, "/openapi.json does not take POST: use GET or HEAD."),
    ],
)
async def test_unknown_paths_and_methods_are_answered_with_what_to_use(by_hand, method, path, status, detail):
    async with by_hand() as (client, _):
        response = await client.request(method, path)
        assert (response.status_code, response.json()["detail"]) == (status, detail)
        assert (response.headers.get("allow") is None) == (status == 404)


async def test_long_unknown_path_is_answered_soon(by_hand):
    async with by_hand() as (client, _):
        async with asyncio.timeout(2):
            response = await client.get("/" + "x" * 60_000)
        assert (response.status_code, len(response.json()["detail"]) < 200) == (404, True)
