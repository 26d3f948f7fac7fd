import asyncio

import pytest

from benchmarks.simulation.virtual_clock import VirtualClockLoop


def run(main):
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def now():
    return asyncio.get_running_loop().time()


def test_an_hour_of_sleep_is_over_at_once_and_in_order():
    async def sleep(seconds, seen):
        await asyncio.sleep(seconds)
        seen.append((seconds, now()))

    async def main():
        seen = []
        await asyncio.gather(*(sleep(seconds, seen) for seconds in (3600.0, 0.5, 60.0)))
        return seen

    assert run(main()) == [(0.5, 0.5), (60.0, 60.0), (3600.0, 3600.0)]


def test_timeouts_are_of_virtual_seconds():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.sleep(1e6)
        return now()

    assert run(main()) == 100


def test_others_go_on_while_a_thread_spends_time():
    seen = []

    def work():
        asyncio.get_running_loop().spend(10)
        return "done"

    async def tick():
        for _ in range(3):
            await asyncio.sleep(4)
            seen.append(now())

    async def main():
        ticking = asyncio.create_task(tick())
        assert await asyncio.to_thread(work) == "done"
        seen.append(("work", now()))
        await ticking

    run(main())
    assert seen == [4, 8, ("work", 10), 12]


def test_what_a_thread_raises_is_raised():
    def work():
        raise OSError("no")

    async def main():
        with pytest.raises(OSError, match="no"):
            await asyncio.to_thread(work)

    run(main())


def test_a_deadlock_is_reported_at_once():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run(main())
