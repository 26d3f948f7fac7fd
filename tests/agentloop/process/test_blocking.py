import asyncio
import contextlib
import sys

import pytest

from agentloop.errors import UserError
from agentloop.process import blocking
from agentloop.process.blocking import run_blocking


async def in_a_loop(function):
    return run_blocking(function)


def in_a_notebook(function):
    return asyncio.run(in_a_loop(function))


@pytest.mark.parametrize("run", [run_blocking, in_a_notebook])
def test_a_task_that_ignores_its_cancellation_does_not_hold_up_the_end(run, monkeypatch, caplog):
    monkeypatch.setattr(blocking, "_CLEANUP_SECONDS", 0.1)
    kept, cleaned = [], []

    async def ignore():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async def clean_up():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    async def call():
        kept.extend(map(asyncio.ensure_future, (ignore(), clean_up())))
        await asyncio.sleep(0)
        return 3

    assert run(call) == 3
    assert cleaned
    assert "ignore() running" in caplog.text
    assert "was abandoned" in caplog.text
    assert "clean_up" not in caplog.text


@pytest.mark.parametrize("run", [run_blocking, in_a_notebook])
def test_a_task_that_exits_ends_the_call_with_an_error(run):
    async def leave():
        sys.exit(0)

    async def call():
        await asyncio.gather(leave(), asyncio.sleep(5))

    with pytest.raises(UserError, match=r"called sys\.exit\(0\) in a task that it had started"):
        run(call)
