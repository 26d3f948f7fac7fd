"""`RayWorkers` whose Ray dies on this machine."""

import asyncio
import shutil
from pathlib import Path

import psutil
import pytest

from agentloop.config.resolved import Facts, resolve
from agentloop.errors import UserError
from agentloop.trainer.cluster.session import log_folder
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.workers.requests import make_requests

pytestmark = [pytest.mark.usefixtures("warm_ray"), pytest.mark.slow]


async def test_the_end_of_ray_on_this_machine_ends_the_run(steady, sums):
    (sums / "gate").touch()  # calls of the tool wait
    config = steady("engine.max_concurrency=4", "workers.kind=ray")
    workers = make_workers(resolve(config, Facts(model=Path(config.model))), None)
    await workers.start()
    session = Path(log_folder()).parent
    (order,) = make_requests("x", [0], n=4, seed=0)
    playing = asyncio.create_task(workers.play(order))
    (raylet,) = [each for each in psutil.Process().children(recursive=True) if each.name() == "raylet"]
    raylet.terminate()
    with pytest.raises(UserError, match="Ray has ended on this machine"):
        await asyncio.wait_for(playing, 90)
    await asyncio.wait_for(workers.close(), 20)
    shutil.rmtree(session)
