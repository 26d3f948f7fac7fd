"""Executions through the client: requests, retries, and servers that answer wrongly, late or never."""

import asyncio
import random
import time

import pytest

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import Execution, SandboxBusyError
from agentloop.sandboxes.client.client import SandboxClient, _pause

pytestmark = pytest.mark.slow

HEALTH = {"level": "slots", "slots": 4, "draining": False}
PROCESS = {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": "1\n", "stderr": ""}
DONE = {"status": "Success", "message": "", "compile_result": None, "run_result": PROCESS, "files": {}}


def run(client: SandboxClient, **options):
    return client.run(Execution(code="print(1)", **{"timeout": 1.0, "compile_timeout": 0.1, **options}))


async def test_request_and_response_are_translated(servers):
    async with servers(token="secret") as (server, client):
        bodies = []

        def answer(method, path, body):
            bodies.append(body)
            process = DONE["run_result"] | {"oom": True, "truncated": True, "signal": 9, "return_code": 137}
            more = {"queue_seconds": 1.5, "files": {"out": "AAE="}, "files_truncated": True, "request_id": "7"}
            return DONE | {"status": "Failed", "run_result": process} | more

        server.answer = answer
        execution = Execution(
            code="x\ud800", stdin=b"\xff", files={"a": b"\0\1"}, fetch_files=["out"], echo=True, output_bytes=7
        )
        result = await client.run(execution, max_queue_seconds=30)
        assert 29 < bodies[0].pop("max_queue_seconds") <= 30
        assert bodies == [
            {
                "code": "x\ud800",
                "language": "python",
                "stdin_base64": "/w==",
                "run_timeout": 10.0,
                "compile_timeout": 10.0,
                "memory_limit_MB": 1024,
                "files": {"a": "AAE="},
                "fetch_files": ["out"],
                "output_bytes": 7,
                "fetch_bytes": 64 << 20,
                "echo": True,
            }
        ]
        assert all(b"authorization: bearer secret\r\n" in head for head in server.heads)
        assert (result.stdout, result.return_code, result.signal, result.oom) == ("1\n", 137, 9, True)
        assert result.output_truncated
        assert result.files == {"out": b"\0\1"}
        assert result.files_truncated
        assert 1.5 <= result.queue_seconds < 2.5
        assert result.compilation is None


async def test_no_token_is_sent_if_none_is_set(servers, monkeypatch):
    monkeypatch.delenv("AGENTLOOP_TOKEN", raising=False)
    async with servers() as (server, client):
        await run(client)
        assert not any(b"authorization" in head for head in server.heads)


async def test_token_is_read_from_the_environment(servers, monkeypatch):
    monkeypatch.setenv("AGENTLOOP_TOKEN", "from-env")
    async with servers() as (server, client):
        await run(client)
        assert all(b"bearer from-env" in head for head in server.heads)


@pytest.mark.parametrize("fault", ["reset", "half", (502, b"<html>bad gateway"), (503, {"detail": "draining"})])
async def test_failed_execution_is_retried_elsewhere(servers, fault):
    async with servers(2) as (one, two, client):
        first = []

        def answer(method, path, body):
            if not first:
                first.append(body)
                return fault
            return DONE

        one.answer = two.answer = answer
        assert (await run(client)).stdout == "1\n"
        runs = [server.runs for server in (one, two)]
        assert runs == [1, 1]


async def test_execution_that_kills_daemons_is_not_retried_forever(servers):
    async with servers(2) as (one, two, client):
        one.answer = two.answer = lambda *_: "reset"
        with pytest.raises(SandboxError, match="A daemon was lost 5 times while it ran this execution"):
            await run(client)
        assert one.runs + two.runs == 5


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((401, {"detail": "No token."}), UserError, "refuses the token: set AGENTLOOP_TOKEN.*It answers: No token.$"),
        ((403, {"detail": "Use localhost."}), UserError, r"refuses the request \(403\): Use localhost.$"),
        ((422, {"detail": [{"loc": ["body", "files"], "msg": "no"}]}), UserError, r"\(422\): files: no"),
        ((413, {"detail": "--max-body-mb"}), UserError, "--max-body-mb"),
        ((404, {"detail": "Not Found"}), SandboxError, "/run_code does not exist"),
        ((500, b"Internal Server Error"), SandboxError, "answers 500 to /run_code: Internal Server Error"),
        ((302, b""), SandboxError, "answers 302"),
        (b"<html>", SandboxError, "is invalid: Invalid JSON.*starts with '<html>'"),
        (b'{"status": "Success"', SandboxError, "is invalid: Invalid JSON"),
        ([], SandboxError, "is invalid"),
        ({"status": "Great"}, SandboxError, "status"),
        (DONE | {"files": {"a": 3}}, SandboxError, "files"),
        (DONE | {"run_result": DONE["run_result"] | {"return_code": "no"}}, SandboxError, "return_code"),
        ({"status": "Success", "message": "odd"}, SandboxError, "The sandbox failed: odd"),
        ({"status": "SandboxError", "message": "disk full."}, SandboxError, "The sandbox failed: disk full.$"),
        (
            {"status": "SandboxError", "run_result": {"status": "Error", "stderr": "KeyError: 'sql'"}},
            SandboxError,
            "The sandbox failed: KeyError: 'sql'",
        ),
    ],
)
async def test_error_responses_raise(servers, answer, kind, message):
    async with servers() as (server, client):
        server.answer = lambda *_: answer
        with pytest.raises(kind, match=message):
            await run(client)
        assert server.runs == 1


async def test_missing_response_times_out(servers):
    async with servers() as (server, client):
        client.daemons[0].margin_seconds = 0.1
        server.answer = lambda *_: asyncio.sleep(60)
        begun = time.monotonic()
        with pytest.raises(SandboxError, match="No answer came within"):
            await client.run(Execution(code="", timeout=0.1, compile_timeout=0.1), max_queue_seconds=0.1)
        assert time.monotonic() - begun < 10
        assert server.runs == 1


async def test_full_daemon_is_retried_until_the_queue_limit(servers):
    async with servers() as (server, client):
        answers = [(504, {"detail": "queue"}), (429, {"detail": "busy"}), DONE]
        server.answer = lambda *_: answers.pop(0)
        assert (await run(client)).ok
        server.answer = lambda *_: (504, {"detail": "queue"})
        with pytest.raises(SandboxBusyError):
            await client.run(Execution(code=""), max_queue_seconds=0.3)


async def test_a_proxy_that_does_not_wait_is_not_a_full_daemon(servers):
    async with servers() as (server, client):
        client.max_lost = 2
        server.answer = lambda *_: (504, b"<html>504 Gateway Time-out</html>")
        with pytest.raises(SandboxError, match=r"A proxy in front of the sandbox daemon gave up .*proxy_read_timeout"):
            await run(client)
        assert server.runs == 2


async def test_cancelled_run_closes_its_connection(servers):
    async with servers() as (server, client):
        await run(client)
        server.answer = lambda *_: asyncio.sleep(60)
        task = asyncio.create_task(run(client))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.someone_left.wait()
        server.answer = lambda *_: DONE
        assert (await run(client)).ok
        assert client.load().busy == 0


async def test_cancellation_at_any_moment_leaves_no_connection(servers):
    chance = random.Random(0)
    async with servers(max_in_flight=100) as (server, client):
        server.answer = lambda *_: asyncio.sleep(chance.random() * 0.01, DONE)
        await client.start()
        for _ in range(3):
            tasks = [asyncio.create_task(run(client)) for _ in range(40)]
            for _ in tasks:
                await asyncio.sleep(chance.choice([0, 0, 0.002]))
                chance.choice(tasks).cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()
        async with asyncio.timeout(5):
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_next_execution_goes_to_the_least_loaded_daemon(servers):
    async with servers(2) as (one, two, client):
        one.health = lambda: HEALTH | {"slots": 6}
        two.health = lambda: HEALTH | {"slots": 2}

        async def slow():
            await asyncio.sleep(0.3)
            return DONE

        one.answer = two.answer = lambda *_: slow()
        results = asyncio.gather(*(run(client) for _ in range(8)))
        await asyncio.sleep(0.15)
        load = client.load()
        assert (load.slots, load.busy, load.waiting) == (8, 8, 0)
        await results
        assert [one.runs, two.runs] == [6, 2]


async def test_excess_executions_wait_in_the_client_in_order(servers):
    async with servers(max_in_flight=1) as (server, client):
        order = []

        async def slow(body):
            order.append(body["code"])
            await asyncio.sleep(0.05)
            return DONE

        server.answer = lambda method, path, body: slow(body)
        await client.start()
        results = await asyncio.gather(*(client.run(Execution(code=str(index))) for index in range(6)))
        assert order == ["0", "1", "2", "3", "4", "5"]
        assert results[5].queue_seconds >= 0.2
        server.answer = lambda *_: asyncio.sleep(60)
        task = asyncio.create_task(run(client))
        await asyncio.sleep(0.05)
        with pytest.raises(SandboxBusyError):
            await client.run(Execution(code=""), max_queue_seconds=0.1)
        task.cancel()


async def test_recovered_daemon_is_used_again(servers):
    async with servers(2) as (one, _, client):
        await run(client)
        await one.stop()
        assert all(result.ok for result in await asyncio.gather(*(run(client) for _ in range(12))))
        before = one.runs
        await one.start()
        async with asyncio.timeout(20):
            while one.runs == before:
                await asyncio.gather(*(run(client) for _ in range(4)))
                await asyncio.sleep(0.02)


async def test_executions_wait_while_all_daemons_are_down(servers):
    async with servers() as (server, client):
        await run(client)
        await server.stop()
        task = asyncio.create_task(run(client))
        await asyncio.sleep(0.3)
        assert not task.done()
        await server.start()
        assert (await task).queue_seconds > 0.2


async def test_waiting_for_a_daemon_is_limited(servers):
    async with servers(patience=0.2) as (server, client):
        await run(client)
        await server.stop()
        begun = time.monotonic()
        with pytest.raises(SandboxError, match=r"No sandbox daemon has answered for 0.2 s. http://127.0.0.1:\d+: The"):
            await run(client)
        assert time.monotonic() - begun < 10
        with pytest.raises(SandboxError, match="has answered"):  # and the next one does not wait
            await run(client)


async def test_start_succeeds_with_some_daemons_down(servers):
    async with servers(2) as (one, two, client):
        await one.stop()
        await client.start()
        assert client.load().slots == 4
        assert (await run(client)).ok
        assert two.runs == 1


async def test_draining_daemon_gets_no_new_executions(servers):
    async with servers(2) as (one, _, client):
        one.health = lambda: HEALTH | {"draining": True}
        await asyncio.gather(*(run(client) for _ in range(4)))
        assert one.runs == 0


async def test_failed_starts_raise(servers):
    async with servers() as (server, client):
        await server.stop()
        with pytest.raises(UserError, match=r"No sandbox daemon answers. Start one with `agentloop tools serve`"):
            await client.start()
    async with servers() as (server, client):
        server.health = lambda: (401, {"detail": "token"})
        with pytest.raises(UserError, match="refuses the token"):
            await client.start()
    async with servers() as (server, client):
        server.health = lambda: {"level": "slots", "slots": 0}
        with pytest.raises(UserError, match="slots"):
            await client.start()


async def test_unrelated_web_server_is_rejected(servers):
    server = await asyncio.start_server(_web, "127.0.0.1", 0)
    client = SandboxClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(UserError, match="is not a sandbox daemon: it answers 404 to /v1/ping"):
        await client.start()
    await client.close()
    server.close()


async def _web(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope")


async def test_sandbox_fusion_server_is_supported(servers):
    """Its answers have nulls and know nothing of ours; signals are negative."""
    async with servers() as (server, client):
        server.health = lambda: (404, {"detail": "Not Found"})
        process = {"status": "Finished", "execution_time": 0.1, "return_code": -9, "stdout": None, "stderr": "x"}
        server.answer = lambda *_: {"status": "Failed", "message": None, "run_result": process, "files": None}
        result = await run(client)
        assert (result.stdout, result.return_code, result.signal, result.queue_seconds < 1) == ("", 137, 9, True)
        process |= {"return_code": 1, "stderr": "Traceback\nnumpy._core._exceptions._ArrayMemoryError: no\n"}
        assert (await run(client)).oom
        process |= {"status": "TimeLimitExceeded", "return_code": None, "stdout": "partial\n"}
        result = await run(client)
        assert (result.timed_out, result.return_code, result.stdout, result.oom) == (True, None, "partial\n", False)
        compiler = {"status": "Finished", "execution_time": 0.2, "return_code": 1, "stdout": "", "stderr": "error"}
        server.answer = lambda *_: {"status": "Failed", "compile_result": compiler, "run_result": None}
        result = await run(client)
        assert (result.compiled, result.return_code, result.stderr) == (False, 1, "error")
        with pytest.raises(UserError, match="SandboxFusion, whose stdin is text"):
            await run(client, stdin=b"\xff")
        await run(client, stdin="å".encode())
        with pytest.raises(UserError, match="SandboxFusion, which has no sessions"):
            await client.session()
        assert server.asked.count("POST /v1/sessions") == 0


async def test_mixed_kinds_of_daemons_are_supported(servers):
    async with servers(2) as (one, _, client):
        one.health = lambda: (404, {})
        with pytest.raises(UserError, match="use one kind"):
            await client.start()


async def test_missing_packages_of_the_daemon_raise(servers):
    async with servers(packages=["numpy", "nope"]) as (server, client):
        server.answer = lambda *_: DONE | {"run_result": DONE["run_result"] | {"stdout": "nope\n"}}
        with pytest.raises(UserError, match=r"lacks packages: nope.*--packages"):
            await client.start()
        server.answer = lambda *_: DONE | {"run_result": DONE["run_result"] | {"stdout": "\n"}}
        await client.start()


async def test_daemons_that_answer_later_are_not_used_without_the_packages(servers, caplog):
    async with servers(2, packages=["nope"]) as (one, two, client):
        two.answer = lambda *_: DONE | {"run_result": DONE["run_result"] | {"stdout": "\n"}}
        await one.stop()
        await client.start()
        one.answer = lambda *_: DONE | {"run_result": DONE["run_result"] | {"stdout": "nope\n"}}
        await one.start()
        async with asyncio.timeout(20):
            while "is not used" not in caplog.text:
                await run(client)
                await asyncio.sleep(0.02)
        assert [(await run(client)).stdout for _ in range(8)] == 8 * ["\n"]
        one.answer = two.answer
        async with asyncio.timeout(20):
            while client.load().slots < 8:
                await run(client)
                await asyncio.sleep(0.02)


async def test_credentials_in_the_address_are_sent(server, monkeypatch):
    monkeypatch.delenv("AGENTLOOP_TOKEN", raising=False)
    await server.start()
    client = SandboxClient(server.url.replace("//", "//me:p%40ss@"))
    await run(client)
    assert all(b"authorization: basic bwu6cebzcw==\r\n" in head for head in server.heads)  # me:p@ss, in small letters
    await client.close()
    await server.stop()


async def test_idle_connections_are_closed(servers):
    async with servers() as (server, client):
        client.daemons[0].connections.idle_seconds = 0.5
        server.answer = lambda *_: asyncio.sleep(0.05, DONE)
        await asyncio.gather(*(run(client) for _ in range(6)))
        assert server.connections == 6
        await asyncio.sleep(0.6)
        await run(client)
        await asyncio.sleep(0.1)
        assert server.connections == 1


async def test_environment_proxies_are_ignored(servers, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with servers() as (_, client):
        assert (await run(client)).ok


@pytest.mark.parametrize("seed", range(3))
async def test_no_execution_is_lost_when_servers_fail(servers, seed):
    chance = random.Random(seed)
    faults = ["reset", "half", (502, b""), (503, b""), (504, b""), (429, b"")]

    async def answer(code: str):
        await asyncio.sleep(chance.random() * 0.01)
        return chance.choice(faults) if chance.random() < 0.2 else DONE | {"run_result": PROCESS | {"stdout": code}}

    async with servers(3) as (*three, client):
        client.max_lost = 100
        for server in three:
            server.answer = lambda method, path, body: answer(body["code"])
        tasks = [asyncio.create_task(client.run(Execution(code=str(number)))) for number in range(200)]
        for _ in range(3):
            server = chance.choice(three)
            await server.stop()
            await asyncio.sleep(0.1)
            await server.start()
        assert [result.stdout for result in await asyncio.gather(*tasks)] == [str(number) for number in range(200)]
        assert client.load().busy == 0


def test_client_serves_successive_event_loops(server):
    clients = []

    async def use():
        await server.start()
        clients.append(clients[0] if clients else SandboxClient(server.url))
        results = await asyncio.gather(*(run(clients[0]) for _ in range(3)))
        await server.stop()
        return [result.stdout for result in results]

    assert [asyncio.run(use()) for _ in range(3)] == [["1\n"] * 3] * 3
    assert server.asked.count("GET /v1/health") == 1


async def test_large_files_round_trip(servers):
    async with servers() as (server, client):
        data = b"x" * (24 << 20)
        server.answer = lambda method, path, body: DONE | {"files": body["files"]}
        result = await client.run(Execution(code="", files={"big": data}, fetch_files=["big"], timeout=60))
        assert result.files == {"big": data}


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("localhost:8080", "must be the address of a daemon"),
        ("ftp://host", "must be the address"),
        ("http://", "must be the address"),
        ("http://host?x=1", "must be the address"),
        ("http://host:port", "is not a URL"),
        ("", "The list of sandbox daemons is empty"),
        ([], "The list of sandbox daemons is empty"),
        (" , ", "The list of sandbox daemons is empty"),
    ],
)
def test_invalid_addresses_raise(urls, message):
    with pytest.raises(UserError, match=message):
        SandboxClient(urls)


def test_addresses_are_parsed():
    def names(urls):
        return [daemon.name for daemon in SandboxClient(urls).daemons]

    assert names("http://a:8080, http://b:8080/,http://a:8080/run_code") == ["http://a:8080", "http://b:8080"]
    assert names(["https://u:p@host/base/"]) == ["https://host/base"]
    with pytest.raises(UserError, match="printable ASCII"):
        SandboxClient("http://a", token="a\nb")


def test_pauses_are_bounded_however_long_the_daemons_are_full():
    assert 0.01 <= _pause(0) <= 0.02
    assert 1.0 <= _pause(100_000) <= 2.0
