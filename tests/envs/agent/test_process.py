"""A command ends with its process, even if its child processes still run."""

import os
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
