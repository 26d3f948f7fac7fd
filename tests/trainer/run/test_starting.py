import asyncio
from types import SimpleNamespace

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.starting import start
from agentloop.trainer.run.train import resolve_run
from agentloop.trainer.schedule.observers import Observer, Part, StageTimer

pytestmark = pytest.mark.slow


class Loading(Observer):
    def __init__(self):
        self.learner_is_ready = asyncio.Event()

    def on_part(self, part, seconds):
        if part is Part.LEARNER and seconds is not None:
            self.learner_is_ready.set()


async def test_a_learner_on_the_processor_loads_while_the_workers_start(sums):
    config, _ = resolve_run(load_config(RunConfig, sums / "config.yaml"), sums / "run")
    log = Loading()
    workers = SimpleNamespace(start=log.learner_is_ready.wait)
    learner = await start(config, workers, sums / "run", StageTimer(log))
    learner.close()


async def test_a_learner_loads_after_an_engine_of_its_process(sums):
    """Two models that load at the same time in one process get each other's dtype and miss weights."""
    config, _ = resolve_run(load_config(RunConfig, sums / "config.yaml", ["engine.name=hf"]), sums / "run")
    log = Loading()

    async def start_slowly():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.learner_is_ready.wait(), 1)

    workers = SimpleNamespace(start=start_slowly, reservation=None)
    (await start(config, workers, sums / "run", StageTimer(log))).close()
    assert log.learner_is_ready.is_set()


async def test_workers_that_cannot_start_end_the_start_while_the_learner_loads(sums):
    config, _ = resolve_run(load_config(RunConfig, sums / "config.yaml"), sums / "run")
    log = Loading()

    async def fail():
        raise UserError("no engine today")

    workers = SimpleNamespace(start=fail)
    with pytest.raises(UserError, match="no engine today"):
        await start(config, workers, sums / "run", StageTimer(log))
    await log.learner_is_ready.wait()
