"""A command ends with its process, even if its child processes still run."""

import os
import signal
import time

import pytest

from agentloop.envs.agent.interface.process import run_process
from tests.support.processes import wait_until_gone

pytestmark = pytest.mark.slow


async def test_a_child_that_holds_the_output_open_is_killed():
    begin = time.monotonic()
    output = await run_process(["sh", "-c", "sleep 60 & echo $!"], os.environ)
    assert time.monotonic() - begin < 30
    wait_until_gone(int(output))


async def test_a_child_that_has_left_the_group_does_not_keep_the_command():
    begin = time.monotonic()
    output = await run_process(["sh", "-c", "setsid sleep 60 & echo $!"], os.environ, stdin=bytes(1 << 20))
    assert time.monotonic() - begin < 30
    os.kill(int(output), signal.SIGKILL)


async def test_input_and_output_may_be_larger_than_a_pipe():
    sent = bytes(range(256)) * (1 << 11)
    assert await run_process(["cat"], os.environ, stdin=sent) == sent
