"""The parts around vLLM that need no vLLM."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from agentloop.engines.base import EngineDead
from agentloop.engines.vllm.core import OutputFence, unless_dead
from agentloop.errors import EngineError


class FakeLlm:
    """A small output handler like vLLM's: takes outputs of the core, processes them in slices, and asks for more."""

    errored = False

    def __init__(self):
        self.engine_core = self
        self.outputs_queue = asyncio.Queue()
        self.tokens = 0

    async def get_output_async(self):
        return await self.outputs_queue.get()

    async def handle(self):
        while True:
            for tokens in await self.engine_core.get_output_async():
                self.tokens += tokens
                await asyncio.sleep(0)


@pytest.mark.parametrize("slices", [[1], [1, 1, 1, 1, 1, 1, 1, 1, 1]])
async def test_fence_opens_after_all_outputs_are_processed(slices):
    llm = FakeLlm()
    fence = OutputFence(llm)
    handler = asyncio.create_task(llm.handle())
    await fence.wait()
    for count in range(1, 50):
        for _ in range(count % 4):
            llm.outputs_queue.put_nowait(slices)
        if count % 3 == 0:
            await asyncio.sleep(0)  # the handler is in the midst of it
        await fence.wait()
        assert llm.outputs_queue.empty()
        assert llm.tokens == sum(n % 4 for n in range(1, count + 1)) * len(slices)
    handler.cancel()


async def test_fence_does_not_wait_for_a_dead_engine():
    llm = FakeLlm()
    fence = OutputFence(llm)
    llm.errored = True
    with pytest.raises(EngineError, match="has ended"):
        await fence.wait()


async def test_calls_to_a_dead_engine_do_not_wait():
    llm = FakeLlm()
    never = asyncio.get_running_loop().create_future()
    asked = asyncio.create_task(unless_dead(llm, never))
    await asyncio.sleep(0)
    assert not asked.done()
    llm.errored = True
    with pytest.raises(EngineDead, match="has ended"):
        await asked
    assert never.cancelled()


async def test_results_and_errors_of_a_live_engine_propagate():
    async def answer(value):
        await asyncio.sleep(0)
        return 1 // value

    assert await unless_dead(FakeLlm(), answer(1)) == 1
    with pytest.raises(ZeroDivisionError):
        await unless_dead(FakeLlm(), answer(0))


async def test_a_reply_takes_few_rounds_of_the_event_loop():
    """While many agent loops run, a round takes tens of milliseconds."""
    rounds = 0

    async def count():
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    counting = asyncio.create_task(count())
    for _ in range(3):
        reply = loop.create_future()
        loop.call_soon(reply.set_result, 1)
        before = rounds
        assert await unless_dead(FakeLlm(), reply) == 1
        assert rounds - before <= 2
    counting.cancel()


async def test_error_of_a_dead_engine_becomes_engine_death():
    llm = FakeLlm()

    async def answer():
        llm.errored = True
        raise ConnectionError

    with pytest.raises(EngineDead):
        await unless_dead(llm, answer())


@pytest.mark.slow
def test_worker_and_engine_core_exit_with_a_killed_owner(tmp_path):
    meeting = tmp_path / "vllm_dist_0"
    meeting.touch()
    program = """
import os, sys, time
from agentloop.engines.vllm.worker import WeightReceiver
owner = os.getpid()
if os.fork() == 0:                                  # the engine core
    if os.fork() == 0:                              # its worker
        worker = WeightReceiver()
        worker.distributed_init_method = "file://" + sys.argv[1]
        worker.agentloop_watch(owner)
        print(os.getppid(), os.getpid(), flush=True)
    time.sleep(60)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program, meeting], stdout=subprocess.PIPE, text=True)
    core, worker = map(int, owner.stdout.readline().split())
    assert all(_runs(pid) for pid in (core, worker))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 20
    while any(_runs(pid) for pid in (core, worker)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(_runs(pid) for pid in (core, worker))
    assert not meeting.exists()


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
