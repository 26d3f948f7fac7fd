import asyncio
import contextvars

import pytest

from agentloop.tools.first_step import first_step


def test_coroutine_that_never_waits_finishes_without_a_loop():
    async def inner() -> int:
        return 3

    async def add() -> int:
        return await inner() + 4

    assert first_step(add()) == (True, 7)


def test_immediate_exception_propagates():
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        first_step(fail())


async def test_waiting_coroutine_continues_when_awaited():
    steps = []

    async def work() -> str:
        steps.append("first")
        await asyncio.sleep(0)
        steps.append("second")
        value = await asyncio.get_running_loop().run_in_executor(None, lambda: "from a thread")
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0.001))
        return value

    is_done, rest = first_step(work())
    assert (is_done, steps) == (False, ["first"])
    assert await rest == "from a thread"
    assert steps == ["first", "second"]


async def test_later_exception_is_raised_from_the_await():
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    _, rest = first_step(fail())
    with pytest.raises(KeyError):
        await rest


async def test_timeout_cancels_it_and_allows_cleanup():
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned")
            raise

    _, rest = first_step(work())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rest
    assert seen == ["cancelled", "cleaned"]


async def test_coroutine_may_suppress_cancellation():
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "stayed"
        return "slept"

    _, rest = first_step(work())
    task = asyncio.ensure_future(rest)
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "stayed"


async def test_context_variables_come_from_the_caller():
    variable = contextvars.ContextVar("variable", default=0)

    async def work() -> int:
        variable.set(1)
        await asyncio.sleep(0)
        return variable.get()

    _, rest = first_step(work())
    assert await rest == 1
    assert variable.get() == 1
