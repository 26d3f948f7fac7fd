"""Pools of threads: bounded, named, and none holds up another."""

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from agentloop.envs.rewards import Reward
from agentloop.envs.rewards.function import RewardFunction
from agentloop.process import threads
from agentloop.process.offloading import OFF_LOOP_SIZE, off_loop
from agentloop.process.threads import Threads, quick_switches, threaded
from agentloop.types.trajectory import Trajectory

POOLS = {name: pool for name, pool in vars(threads).items() if isinstance(pool, Threads)}


def thread_name(*_, **__):
    return threading.current_thread().name


async def test_never_more_threads_than_its_size():
    pool = Threads("few", 2)
    running, most, may_end = 0, 0, threading.Event()
    lock = threading.Lock()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert may_end.wait(10)
        with lock:
            running -= 1

    calls = [asyncio.ensure_future(pool.run(work)) for _ in range(6)]
    while running < 2:  # noqa: ASYNC110 (threads count)
        await asyncio.sleep(0.01)
    may_end.set()
    await asyncio.gather(*calls)
    assert most == 2
    assert sum(thread.name == "few" for thread in threading.enumerate()) == 2


@pytest.mark.parametrize("name", POOLS)
async def test_a_kind_of_work_that_waits_holds_up_no_other(name):
    may_end = threading.Event()
    waiting = [asyncio.ensure_future(POOLS[name].run(may_end.wait, 30)) for _ in range(POOLS[name].size + 1)]
    await asyncio.sleep(0)
    for other, pool in POOLS.items():
        if other != name:
            assert await asyncio.wait_for(pool.run(thread_name), 20) == pool.name
    may_end.set()
    assert all(await asyncio.gather(*waiting))


async def test_errors_results_and_context_are_those_of_the_call():
    pool, variable = Threads("x", 1), contextvars.ContextVar("variable", default=0)
    variable.set(5)
    assert await pool.run(variable.get) == 5
    assert await pool.run(int, "ff", base=16) == 255
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)


async def test_a_call_that_raises_stop_iteration_answers_its_caller():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(Threads("x", 1).run(next, iter([])), 10)


async def test_a_call_that_waits_is_not_made_if_its_caller_is_cancelled():
    pool, may_end, made = Threads("x", 1), threading.Event(), []
    first = asyncio.ensure_future(pool.run(may_end.wait, 30))
    second = asyncio.ensure_future(pool.run(made.append, 2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    may_end.set()
    await first
    await pool.run(made.append, 3)
    assert made == [3]


async def test_work_runs_in_the_threads_of_its_kind():
    class Named(Reward):
        def __call__(self, trajectory, task):
            return {"reward": 1.0, "seen": float(thread_name() == "agentloop-reward")}

    def function(trajectory, task):
        return {"reward": 1.0, "seen": float(thread_name() == "agentloop-reward")}

    for reward in (Named(), function):
        judgement = await RewardFunction(reward, name="named").judge(Trajectory(), {})
        assert judgement.metrics == {"seen": 1.0}
    assert await off_loop(OFF_LOOP_SIZE, thread_name) == "agentloop-decoding"
    assert await threaded(thread_name)() == "agentloop-tool"


@pytest.mark.slow
def test_a_call_that_hangs_does_not_keep_the_process_from_ending():
    code = """
import asyncio, threading
from agentloop.process.threads import REWARDS
async def main():
    try:
        await asyncio.wait_for(REWARDS.run(threading.Event().wait), 0.1)
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "given up\n"


def test_switches_between_threads_are_quick_in_the_block_alone():
    before = sys.getswitchinterval()
    with quick_switches():
        assert sys.getswitchinterval() == pytest.approx(0.0005)
        sys.setswitchinterval(1e-5)
        with quick_switches():
            assert sys.getswitchinterval() == pytest.approx(1e-5)  # shorter ones are kept
    assert sys.getswitchinterval() == before
