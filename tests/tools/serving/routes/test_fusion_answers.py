"""/run_code with a fake sandbox: failures, the queue, and the format of results."""

import asyncio
import time

import pytest

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import ProcessResult, SandboxBusyError
from agentloop.tools.serving.routes.fusion import RunCode

pytestmark = pytest.mark.slow


def raising(error):
    def answer(execution):
        raise error

    return answer


async def test_omitted_fields_get_defaults(by_hand):
    async with by_hand(memory_mb=700) as (client, sandbox):
        await client.run("x")
        (execution,) = sandbox.executions
        assert (execution.language, execution.stdin, execution.memory_mb) == ("python", None, 700)
        assert (execution.timeout, execution.compile_timeout) == (10.0, 10.0)
        assert not execution.files


async def test_memory_of_minus_one_uses_the_daemon_default(by_hand):
    async with by_hand(memory_mb=700) as (client, sandbox):
        await client.run("x", memory_limit_MB=-1)
        await client.run("x", memory_limit_MB=64)
        assert [execution.memory_mb for execution in sandbox.executions] == [700, 64]


@pytest.mark.parametrize(
    "error", [SandboxError("the slot broke."), UserError("The language 'rust' needs the program rustc.")]
)
async def test_sandbox_failure_becomes_a_status(by_hand, error):
    async with by_hand() as (client, sandbox):
        sandbox.answer = raising(error)
        body = await client.run("fn main() {}", language="rust")
        assert body["status"] == "SandboxError"
        assert body["message"] == str(error)
        assert body["run_result"]["status"] == "Error"
        assert body["run_result"]["stderr"] == str(error)


async def test_failure_is_503_after_the_sandbox_was_closed_by_a_second_signal(by_hand):
    async def session(settings=None):
        raise SandboxError("The sandbox died.")

    async with by_hand() as (client, sandbox):
        sandbox.answer = raising(SandboxError("The sandbox died."))
        sandbox.session = session
        client.daemon.draining = True
        for path, body in (("/run_code", {"code": "x"}), ("/run_jupyter", {"cells": ["x"]}), ("/v1/sessions", {})):
            response = await client.post(path, json=body)
            assert (response.status_code, "send the request to another one" in response.text) == (503, True)
        sandbox.answer = raising(UserError("The language 'rust' needs the program rustc."))
        assert (await client.run("fn main() {}", language="rust"))["status"] == "SandboxError"


async def test_compile_error_is_reported(by_hand, make_result):
    async with by_hand() as (client, sandbox):
        compilation = ProcessResult(stdout="", stderr="error: expected ';'", return_code=1, seconds=0.2)
        sandbox.answer = lambda execution: make_result(return_code=1, compilation=compilation)
        body = await client.run("int main", language="cpp")
        assert (body["status"], body["run_result"]) == ("Failed", None)
        assert body["compile_result"]["status"] == "Finished"
        assert body["compile_result"]["return_code"] == 1
        assert body["compile_result"]["stderr"] == "error: expected ';'"


async def test_compile_result_is_reported(by_hand, make_result):
    async with by_hand() as (client, sandbox):
        compilation = ProcessResult(stdout="", stderr="", return_code=0, seconds=0.2)
        sandbox.answer = lambda execution: make_result(compilation=compilation, queue_seconds=1.5)
        body = await client.run("int main() {}", language="cpp")
        assert body["status"] == "Success"
        assert body["compile_result"]["return_code"] == 0
        assert body["run_result"]["stdout"] == "1\n"
        assert body["queue_seconds"] == 1.5


async def test_queue_longer_than_the_client_timeout_gets_504(by_hand):
    async with by_hand() as (client, sandbox):
        sandbox.answer = raising(SandboxBusyError("No slot became free in 14.5 s."))
        response = await client.post("/run_code", json={"code": "x", "run_timeout": 3, "compile_timeout": 2})
        assert response.status_code == 504
        assert "No slot became free" in response.json()["detail"]
        assert sandbox.queue_seconds == [pytest.approx(10.0, abs=0.5)]  # the client waits for 15 s


async def test_requested_queue_timeout_is_used(by_hand):
    async with by_hand() as (client, sandbox):
        await client.run("x", max_queue_seconds=0.25)
        await client.run("x", max_queue_seconds=1e6)
        assert sandbox.queue_seconds == [pytest.approx(0.25, abs=0.25), pytest.approx(29.5, abs=0.5)]


async def test_disconnected_client_cancels_and_is_counted(by_hand, until):
    async with by_hand() as (client, sandbox):
        _, writer = await client.send_only("POST", "/run_code", {"code": "wait"})
        await sandbox.begun.wait()
        writer.close()
        await until(lambda: sandbox.cancelled == 1)
        await until(lambda: b'outcome="client_gone"} 1.0' in client.daemon.metrics.text())


async def test_half_closed_connection_counts_as_disconnected(by_hand, until):
    async with by_hand() as (client, sandbox):
        _, writer = await client.send_only("POST", "/run_code", {"code": "wait"})
        await sandbox.begun.wait()
        writer.write_eof()
        await until(lambda: sandbox.cancelled == 1)


async def test_thousand_open_connections_do_no_harm(by_hand):
    async with by_hand() as (client, _):
        connections = [await client.raw(b"") for _ in range(1000)]
        assert (await client.run())["status"] == "Success"
        for _, writer in connections:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in connections))


async def test_connections_above_the_limit_are_rejected(by_hand):
    async with by_hand(max_connections=5) as (client, _):
        connections = [await client.raw(b"") for _ in range(6)]
        assert (await client.post("/run_code", json={"code": "x"})).status_code == 503
        for _, writer in connections:
            writer.close()


@pytest.mark.parametrize("language", ["python", "cpp"])
async def test_nothing_starts_whose_limits_no_longer_fit(by_hand, language):
    async with by_hand() as (client, sandbox):
        await client.run("x", language=language, run_timeout=3, compile_timeout=4)
        (queue,) = sandbox.queue_seconds
        client_waits = 3 + 4 + 10
        assert queue + 3 + (4 if language == "cpp" else 0) < client_waits - 1


async def test_answer_comes_at_the_deadline_and_ends_the_work(by_hand, monkeypatch, until):
    monkeypatch.setattr(RunCode, "client_seconds", 2.0)
    monkeypatch.setattr(RunCode, "overhead_seconds", 0.1)
    async with by_hand() as (client, sandbox):
        request = {"code": "wait", "run_timeout": 0.1, "compile_timeout": 0.1}
        started = time.monotonic()
        response = await client.post("/run_code", json=request)
        assert response.status_code == 504
        assert 1.5 < time.monotonic() - started < 10
        await until(lambda: sandbox.cancelled == 1)
        assert b'outcome="overdue"} 1.0' in client.daemon.metrics.text()


async def test_answer_does_not_wait_for_work_that_ends_slowly(by_hand, monkeypatch, until):
    monkeypatch.setattr(RunCode, "client_seconds", 1.0)
    async with by_hand() as (client, sandbox):
        ended = asyncio.Event()
        released = asyncio.Event()

        async def stubborn(execution, *, max_queue_seconds):
            try:
                await asyncio.sleep(60)
            finally:
                await released.wait()
                ended.set()

        sandbox.run = stubborn
        response = await client.post("/run_code", json={"code": "x", "run_timeout": 0.1, "compile_timeout": 0.1})
        assert response.status_code == 504
        assert not ended.is_set()
        released.set()
        await until(ended.is_set)
