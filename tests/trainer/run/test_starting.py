import asyncio
import sys

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.errors import UserError
from agentloop.trainer.run.starting import start
from agentloop.trainer.run.train import resolve_run, train
from agentloop.trainer.schedule.observers import Observer, Part, StageTimer

pytestmark = pytest.mark.slow


class Loading(Observer):
    def __init__(self):
        self.learner_is_ready = asyncio.Event()

    def on_part(self, part, seconds):
        if part is Part.LEARNER and seconds is not None:
            self.learner_is_ready.set()


class FakeWorkers:
    """Workers whose start is a function of the test."""

    reservation = None

    def __init__(self, start):
        self.start = start

    async def reserve(self):
        pass


def resolved(sums, *overrides):
    return resolve_run(load_config(RunConfig, sums / "config.yaml", overrides), sums / "run")[0]


async def test_a_learner_loads_while_workers_in_other_processes_start(sums):
    log = Loading()
    workers = FakeWorkers(log.learner_is_ready.wait)
    (await start(resolved(sums, "workers.kind=ray"), workers, sums / "run", StageTimer(log))).close()


async def test_a_learner_loads_after_an_engine_of_its_process(sums):
    """Two models that load at the same time in one process get each other's dtype and miss weights."""
    log = Loading()

    async def start_slowly():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.learner_is_ready.wait(), 1)

    (await start(resolved(sums), FakeWorkers(start_slowly), sums / "run", StageTimer(log))).close()
    assert log.learner_is_ready.is_set()


async def test_workers_that_cannot_start_end_the_start(sums):
    async def fail():
        raise UserError("no engine today")

    for kind in ("local", "ray"):
        with pytest.raises(UserError, match="no engine today"):
            await start(resolved(sums, f"workers.kind={kind}"), FakeWorkers(fail), sums / "run", StageTimer(Observer()))


async def test_a_learner_that_cannot_load_ends_the_start_of_the_workers(sums):
    is_cancelled = asyncio.Event()

    async def start_forever():
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    config = resolved(sums, "workers.kind=ray")
    config = config.replace(learner=config.learner.replace(model=str(sums / "nothing")))
    with pytest.raises(UserError, match="nothing"):
        await start(config, FakeWorkers(start_forever), sums / "run", StageTimer(Observer()))
    assert is_cancelled.is_set()


@pytest.mark.parametrize("override", ["learner.ranks=2", "learner.in_process=false", "workers.kind=ray"])
def test_without_ray_no_engine_starts(sums, monkeypatch, override):
    monkeypatch.setitem(sys.modules, "ray", None)
    started = []
    monkeypatch.setattr(ScriptedEngine, "start", started.append)
    config = load_config(RunConfig, sums / "config.yaml", [override])
    with pytest.raises(UserError, match="need Ray, which cannot be imported"):
        asyncio.run(train(config, sums / "run"))
    assert not started
