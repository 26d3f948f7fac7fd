"""Sessions through the client: they stay in their daemon, and no cell runs twice."""

import asyncio

import pytest

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import SandboxBusyError, SessionSettings

pytestmark = pytest.mark.slow

CELL = {"stdout": "1\n", "stderr": "", "displays": [], "error": None, "seconds": 0.01}


def session_server(server, **cells):
    """Return answers that serve sessions; `cells` maps code to the answer of its run."""

    def answer(method, path, body):
        if path == "/v1/sessions":
            return {"id": "s1"}
        if path == "/v1/sessions/s1/run":
            return cells.get(body["code"], CELL)
        return {"files": {"a": "AAE="}}

    server.answer = answer


async def test_session_stays_on_its_daemon(servers):
    async with servers(2) as (one, two, client):
        session_server(one)
        session_server(two)
        session = await client.session(SessionSettings(memory_mb=100, files={"a": b"x"}))
        assert client.load().sessions == 1
        for _ in range(5):
            assert (await session.run("x")).stdout == "1\n"
        await session.write_files({"b": b"y"})
        assert await session.read_files(["a"]) == {"a": b"\0\1"}
        await session.interrupt()
        await session.close()
        await session.close()
        assert client.load().sessions == 0
        used, unused = sorted((one.asked, two.asked), key=len, reverse=True)
        assert unused == ["GET /v1/ping", "GET /v1/health"]
        path = "/v1/sessions/s1"
        assert used[2:] == [
            "POST /v1/sessions",
            *[f"POST {path}/run"] * 5,
            *(f"PUT {path}/files", f"POST {path}/files/read", f"POST {path}/interrupt", f"DELETE {path}"),
        ]
        with pytest.raises(SandboxError, match="was closed"):
            await session.run("x")


async def test_sessions_are_spread_over_the_daemons(servers):
    async with servers(2) as (one, two, client):
        session_server(one)
        session_server(two)
        await asyncio.gather(*(client.session() for _ in range(10)))
        assert [server.asked.count("POST /v1/sessions") for server in (one, two)] == [5, 5]


async def test_cell_displays_are_returned(servers):
    async with servers() as (server, client):
        error = {"name": "ValueError", "value": "no", "traceback": ["Traceback", "ValueError: no"]}
        shown = [{"text/plain": "<Figure>", "image/png": "iVBORw=="}, {"image/svg+xml": "<svg/>"}]
        ended = {"timed_out": True, "oom": True, "output_truncated": True, "session_ended": "killed"}
        session_server(
            server, x=CELL | {"error": error, "displays": shown} | ended, y=CELL | {"displays": [{"image/png": "%"}]}
        )
        session = await client.session()
        result = await session.run("x")
        assert result.error is not None
        assert (result.error.name, list(result.error.traceback)) == ("ValueError", ["Traceback", "ValueError: no"])
        assert list(result.displays) == [
            {"text/plain": "<Figure>", "image/png": b"\x89PNG"},
            {"image/svg+xml": "<svg/>"},
        ]
        assert result.timed_out
        assert result.oom
        assert result.output_truncated
        assert result.session_ended == "killed"
        with pytest.raises(SandboxError, match="is not base64"):
            await session.run("y")


@pytest.mark.parametrize("fault", ["reset", "half", (502, b""), (503, b""), (504, b"")])
async def test_cell_that_may_have_run_is_not_retried(servers, fault):
    async with servers(2) as (one, two, client):
        session_server(one, x=fault)
        session_server(two, x=fault)
        session = await client.session()
        with pytest.raises(SandboxError, match="may have run: its state is unknown"):
            await session.run("x")
        asked = one.asked + two.asked
        assert asked.count("POST /v1/sessions/s1/run") == 1


async def test_session_of_a_dead_daemon_is_lost(servers):
    async with servers(2) as (one, two, client):
        session_server(one)
        session_server(two)
        session = await client.session()
        await (one if "POST /v1/sessions" in one.asked else two).stop()
        with pytest.raises(SandboxError, match=r"(did not run|may have run: its state is unknown)\.$"):
            await session.run("x")
        with pytest.raises(SandboxError, match=r"did not run\.$"):
            await session.run("x")
        await session.close()
        assert (await (await client.session()).run("x")).ok  # the other one serves


async def test_unknown_session_is_lost(servers):
    async with servers() as (server, client):
        session_server(server, x=(404, {"detail": "no session s1"}))
        session = await client.session()
        with pytest.raises(SandboxError, match=r"session s1 is over.*restarted"):
            await session.run("x")


async def test_cells_of_one_session_run_in_sequence(servers):
    async with servers() as (server, client):
        running = most = 0

        async def cell():
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return CELL

        server.answer = lambda method, path, body: {"id": "s"} if path == "/v1/sessions" else cell()
        session = await client.session()
        await asyncio.gather(*(session.run("x") for _ in range(5)))
        assert most == 1


async def test_full_daemons_are_skipped_until_all_are_full(servers):
    async with servers(2) as (one, two, client):
        one.answer = lambda *_: (429, {"detail": "64 sessions: --max-sessions"})
        session_server(two)
        sessions = [await client.session() for _ in range(3)]
        assert two.asked.count("POST /v1/sessions") == 3
        two.answer = one.answer
        with pytest.raises(SandboxBusyError, match="--max-sessions"):
            await client.session()
        for session in sessions:
            await session.close()


async def test_invalid_cell_settings_raise_in_the_client(servers):
    async with servers() as (server, client):
        session_server(server)
        session = await client.session()
        for seconds in (0, -1, float("nan"), float("inf"), True):
            with pytest.raises(UserError, match="max_seconds must be a finite number above 0"):
                await session.run("x", max_seconds=seconds)
        with pytest.raises(UserError, match=r"without '\.\.'"):
            await session.write_files({"../x": b""})


async def test_session_of_a_cancelled_caller_is_closed(servers):
    async with servers() as (server, client):
        wait = asyncio.Event()

        async def opened():
            await wait.wait()
            return {"id": "s1"}

        server.answer = lambda method, path, body: opened() if path == "/v1/sessions" else {}
        await client.start()
        task = asyncio.create_task(client.session())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait.set()
        await client.close()
        assert server.asked[-2:] == ["POST /v1/sessions", "DELETE /v1/sessions/s1"]
