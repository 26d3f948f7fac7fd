import asyncio
import contextlib
import sys

import pytest

from agentloop.errors import raised
from agentloop.tools import time_limit, toolset
from agentloop.tools.base import Tool
from agentloop.tools.time_limit import OutOfTimeError, within


async def tries_forever():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def is_always_ready():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


@pytest.mark.parametrize("call", [tries_forever, is_always_ready])
async def test_code_that_ignores_its_cancellation_ends(monkeypatch, call):
    monkeypatch.setattr(time_limit, "_CLEANUP_SECONDS", 0.05)
    with pytest.raises(OutOfTimeError):
        await within(0.01, call())
    await asyncio.sleep(0)  # no cancellation is left for the next wait


async def test_second_cancellation_ends_the_cleanup():
    task = asyncio.ensure_future(within(0.01, tries_forever()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cleanup_may_take_longer_than_the_limit():
    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            return "cleaned"

    assert await within(0.01, work()) == "cleaned"


async def test_timeouts_of_the_code_itself_are_its_own():
    async def retries():
        for _ in range(3):
            try:
                await asyncio.wait_for(asyncio.sleep(60), 0.01)
            except TimeoutError:
                await asyncio.sleep(0)
        raise TimeoutError("of the code")

    with pytest.raises(TimeoutError, match="of the code") as raised:
        await within(10, retries())
    assert not isinstance(raised.value, OutOfTimeError)


@pytest.mark.parametrize("waits", [False, True])
async def test_code_that_calls_exit_does_not_end_the_event_loop(waits):
    async def leaves():
        await (asyncio.to_thread(sys.exit, 3) if waits else asyncio.sleep(0))
        sys.exit(3)

    with pytest.raises(RuntimeError, match=r"it called sys.exit\(3\)") as raised_error:
        await within(10, leaves())
    assert "test_time_limit.py" in raised(raised_error.value)


class Panic(BaseException):
    """Stands in for pyo3's PanicException, which a library in Rust raises."""


async def cancels_what_it_waits_for():
    waited_for = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(waited_for.cancel)
    await waited_for


async def panics():
    await asyncio.sleep(0)
    raise Panic("unwrap on None")


@pytest.mark.parametrize(
    ("call", "message"), [(cancels_what_it_waits_for, "was cancelled"), (panics, "Panic: unwrap on None")]
)
async def test_errors_that_would_end_more_than_the_call_are_contained(call, message):
    with pytest.raises(RuntimeError, match=message) as raised_error:
        await within(10, call())
    assert "test_time_limit.py" in raised(raised_error.value)


async def test_a_tool_that_hangs_at_its_shutdown_does_not_hold_up_the_end(monkeypatch, caplog):
    class Hangs(Tool):
        async def shutdown(self):
            await asyncio.Event().wait()

        async def call(self, ctx):
            return ""

    class Next(Hangs):
        is_down = False

        async def shutdown(self):
            self.is_down = True

    monkeypatch.setattr(toolset, "SHUTDOWN_SECONDS", 0.05)
    following = Next()
    async with asyncio.timeout(20):
        await toolset.Toolset([Hangs(), following]).shutdown()
    assert following.is_down
    assert "'hangs' failed to shut down" in caplog.text
    assert "took longer than 0.05 s" in caplog.text
