"""The client with real daemons: the same results as in the process, and none lost when a daemon is killed."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes import Execution, SandboxBusyError, SessionSettings
from agentloop.sandboxes.client.client import SandboxClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


class Daemon:
    """A daemon in a process of its own, which can be killed and started again at the same address."""

    def __init__(self, *options: str):
        self.options = options
        self.port = 0
        self._reading: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        command = [sys.executable, "-m", "agentloop.tools", "serve", "--port", str(self.port), *self.options]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        printed = ""
        async with asyncio.timeout(60):
            while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", printed)):
                line = await self.process.stdout.readline()
                assert line, f"The daemon ended: {printed}"
                printed += line.decode()
        self.port = int(address[1])
        self._reading = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        while await self.process.stdout.read(1 << 16):
            pass

    async def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()
        if self._reading is not None:
            await self._reading


@asynccontextmanager
async def daemons(number: int, *options: str) -> AsyncIterator[list[Daemon]]:
    started = [Daemon("--isolation", "slots", "--slots", "2", *options) for _ in range(number)]
    try:
        await asyncio.gather(*(daemon.start() for daemon in started))
        yield started
    finally:
        await asyncio.gather(*(daemon.end() for daemon in started))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[SandboxClient]:
    async with daemons(1) as (daemon,):
        client = SandboxClient(daemon.url)
        await client.start()
        yield client
        await client.close()


async def run(client: SandboxClient, code: str, **options):
    return await client.run(Execution(code=code, **{"timeout": 20.0, **options}))


async def test_output_input_and_exit_status(client):
    code = "import sys; print(sys.stdin.read()); print('err', file=sys.stderr); sys.exit(3)"
    result = await run(client, code, stdin="å\n")
    assert (result.stdout, result.stderr, result.return_code, result.ok) == ("å\n\n", "err\n", 3, False)
    assert 0 < result.seconds < 20
    assert (
        await run(client, "import sys; print(sys.stdin.buffer.read())", stdin=b"\xff\0")
    ).stdout == "b'\\xff\\x00'\n"
    assert (await run(client, "import os; os.kill(os.getpid(), 11)")).signal == 11
    assert (await run(client, "x = 3\nx", echo=True)).stdout == "3\n"
    assert (await run(client, "x = 3\nx")).stdout == ""
    assert (await run(client, "echo $((1 + 1))", language="bash")).stdout == "2\n"
    assert "SyntaxError" in (await run(client, "x = '\ud800'")).stderr


async def test_limits_are_enforced(client):
    result = await run(client, "print('partial', flush=True)\nwhile True: pass", timeout=0.5)
    assert (result.stdout, result.timed_out, result.return_code) == ("partial\n", True, None)
    result = await run(client, "x = bytearray(1 << 30)", memory_mb=128)
    assert result.oom
    assert not result.ok
    result = await run(client, "print('x' * 1000)", output_bytes=100)
    assert (result.stdout, result.output_truncated) == ("x" * 100, True)


async def test_files_round_trip(client):
    code = "open('out', 'wb').write(open('sub/in', 'rb').read()[::-1])"
    result = await run(client, code, files={"sub/in": b"\0\xff"}, fetch_files=["out", "missing"])
    assert result.files == {"out": b"\xff\0"}
    assert not result.files_truncated
    assert (await run(client, code, files={"sub/in": b"x" * 99}, fetch_files=["out"], fetch_bytes=9)).files_truncated


async def test_cancelled_run_frees_its_slot(client):
    tasks = [asyncio.create_task(run(client, "import time; time.sleep(60)", timeout=60)) for _ in range(2)]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    begun = time.monotonic()
    assert (await run(client, "print(1)")).stdout == "1\n"
    assert time.monotonic() - begun < 20


async def test_exceeded_queue_limit_raises(client):
    execution = Execution(code="import time; time.sleep(3)", timeout=20.0)
    tasks = [asyncio.create_task(client.run(execution)) for _ in range(2)]
    await asyncio.sleep(0.5)
    for seconds in (0.0, 0.2):
        with pytest.raises(SandboxBusyError):
            await client.run(Execution(code="print(1)"), max_queue_seconds=seconds)
    assert (await client.run(Execution(code="print(1)"), max_queue_seconds=60)).queue_seconds > 0.2
    await asyncio.gather(*tasks)
    # A slot is cleaned for a moment after its answer.
    assert (await client.run(Execution(code="print(1)"), max_queue_seconds=30)).stdout == "1\n"


async def test_many_concurrent_executions_succeed(client):
    results = await asyncio.gather(*(run(client, f"print({number})") for number in range(100)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]
    assert max(result.queue_seconds for result in results) > 0


async def test_session_keeps_state(client):
    session = await client.session(SessionSettings(files={"data": b"12"}))
    result = await session.run("x = int(open('data').read())\nprint('hi')\nx")
    assert (result.stdout, list(result.displays)) == ("hi\n", [{"text/plain": "12"}])
    assert list((await session.run("x + 1")).displays) == [{"text/plain": "13"}]
    failed = await session.run("def f():\n    return 1 / 0\nf()")
    assert failed.error is not None
    assert failed.error.name == "ZeroDivisionError"
    assert failed.error.traceback[-1].strip() == "ZeroDivisionError: division by zero"
    late = await session.run("print('partial', flush=True)\nwhile True: pass", max_seconds=0.5)
    assert (late.stdout, late.timed_out, late.session_ended) == ("partial\n", True, "")
    await session.write_files({"more": b"\0"})
    assert await session.read_files(["more", "data", "missing"]) == {"more": b"\0", "data": b"12"}
    task = asyncio.create_task(session.run("y = 1\nwhile True: pass", max_seconds=60))
    await asyncio.sleep(0.5)
    task.cancel()  # the cell is interrupted, the session goes on
    assert list((await session.run("x + y")).displays) == [{"text/plain": "13"}]
    ended = await session.run("import os; os._exit(3)")
    assert ended.session_ended == "exited"
    with pytest.raises(SandboxError, match="is over"):
        await session.run("1")
    await session.close()


async def test_interrupt_ends_the_cell(client):
    session = await client.session()
    task = asyncio.create_task(session.run("while True: pass", max_seconds=60))
    await asyncio.sleep(0.5)
    await session.interrupt()
    result = await task
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    assert not result.timed_out
    await session.close()


async def test_missing_packages_raise(client):
    with pytest.raises(UserError, match=r"lacks packages: no-such-package\. Install"):
        await SandboxClient([daemon.name for daemon in client.daemons], packages=["no-such-package"]).start()


async def test_wrong_token_is_rejected():
    async with daemons(1, "--token", "right-token-of-16") as (daemon,):
        for token in (None, "wrong"):
            with pytest.raises(UserError, match="refuses the token"):
                await SandboxClient(daemon.url, token=token).start()
        client = SandboxClient(daemon.url, token="right-token-of-16")
        assert (await run(client, "print(1)")).stdout == "1\n"
        await client.close()


async def test_unknown_host_name_is_not_taken_for_a_wrong_token():
    async with daemons(1) as (daemon,):
        with pytest.raises(UserError, match="only this machine: use http://localhost") as raised:
            await SandboxClient(daemon.url.replace("127.0.0.1", "0.0.0.0")).start()
    assert "refuses the token" not in str(raised.value)


async def test_session_dies_with_its_daemon_and_the_next_starts_elsewhere():
    async with daemons(2) as both:
        client = SandboxClient([daemon.url for daemon in both])
        session = await client.session()
        await session.run("x = 1")
        (home,) = [daemon for daemon in both if daemon.url in str(session.daemon.name)]
        await home.end()
        with pytest.raises(SandboxError, match=r"did not run|state is unknown"):
            await session.run("x")
        await session.close()
        other = await client.session()
        assert list((await other.run("2")).displays) == [{"text/plain": "2"}]
        await client.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_no_execution_is_lost_while_daemons_restart(number):
    async with daemons(2) as both:
        client = SandboxClient([daemon.url for daemon in both])
        await client.start()
        over = False
        ran = 0
        progress = asyncio.Condition()

        async def load(worker: int) -> None:
            nonlocal ran
            while not over:
                code = f"import time; time.sleep(0.02); print({worker}, {ran})"
                expected = f"{worker} {ran}\n"
                assert (await run(client, code)).stdout == expected
                async with progress:
                    ran += 1
                    progress.notify_all()

        async with asyncio.TaskGroup() as group:
            for worker in range(8):
                group.create_task(load(worker))
            for turn in range(5):
                before = ran
                async with progress:
                    await progress.wait_for(lambda least=before + 10: ran >= least)
                await both[turn % 2].end(number)
                await both[turn % 2].start()
            over = True
        assert ran >= 50
        assert client.load().busy == 0
        await client.close()
