"""Agent programs on Ray workers: an episode may have several conversations."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from agentloop.config.resolved import Facts, resolve
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.workers.requests import make_requests

pytestmark = [pytest.mark.usefixtures("ray"), pytest.mark.slow]
AGENT = Path(__file__).parents[3] / "support/two_conversations.py"


async def until(condition, playing):
    while not condition():
        assert not playing.done(), playing.result()
        await asyncio.sleep(0.02)


async def test_an_episode_of_two_conversations_outlives_its_worker(steady, sums):
    agent = shutil.copy(AGENT, sums)
    config = steady(
        "workers.kind=ray",
        "limits.max_turns=4",
        f"engine.options={{script: {agent}:script}}",
        f"env={{factory: agent, reward: last_number, options: {{agent: {agent}:solve}}}}",
    )
    workers = make_workers(resolve(config, Facts(model=Path(config.model))), None)
    await workers.start()
    (request,) = make_requests("x", [3], n=4, seed=1)
    (sums / "gate").touch()
    playing = asyncio.create_task(workers.play(request))
    await until(lambda: workers.slots[0].worker is not None and workers.slots[0].worker.requests, playing)
    (opened,) = workers.slots[0].worker.requests
    await until(lambda: len(opened.turns) == 8, playing)
    os.kill(workers.slots[0].worker.pid, signal.SIGKILL)
    (sums / "gate").unlink()
    group = await playing
    assert [t.place for t in group.trajectories] == [0, 1, 2, 3]
    assert [t.error for t in group.trajectories] == [None] * 4
    assert [t.answer for t in group.trajectories] == ["1 2 2 2"] * 4
    assert [len(t.branches) for t in group.trajectories] == [1] * 4
    assert len((sums / "log").read_text().splitlines()) == 16, "no turn was sampled twice"
    await workers.close()
