"""`RayWorkers` with workers that leave while their episodes run."""

import asyncio
from pathlib import Path

import pytest

from agentloop.config.resolved import Facts, resolve
from agentloop.episodes.setup import RolloutSetup, make_engine
from agentloop.errors import UserError
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.requests import make_requests, play_all

pytestmark = [pytest.mark.usefixtures("ray"), pytest.mark.slow]
ORDERS = make_requests("x", range(5), n=4, seed=0)


async def started(config, folder):
    config = config.replace(workers=config.workers.replace(kind="ray", count=2))
    workers = make_workers(resolve(config, Facts(model=Path(config.model))), None, folder)
    await workers.start()
    return workers


def said(groups):
    return [(t.trajectory_id, t.token_ids.tolist(), t.reward) for group in groups for t in group.trajectories]


async def alone(config):
    """Return the answers of a worker that nobody interrupts."""
    model = Path(config.model)
    worker = LocalWorkers(RolloutSetup.load(config, model), make_engine(resolve(config, Facts(model=model))))
    await worker.start()
    groups = await play_all(worker, ORDERS)
    await worker.close()
    return said(groups)


async def until(condition, playing=None):
    while not condition():
        assert playing is None or not playing.done(), playing.result()
        await asyncio.sleep(0.02)


def busy(workers):
    return [slot for slot in workers.slots if slot.worker is not None and slot.worker.requests]


async def test_a_worker_that_leaves_ends_its_episodes_and_gets_no_more(steady, sums, tmp_path):
    config = steady("engine.max_concurrency=20")
    expected = await alone(config)
    workers = await started(config, tmp_path)
    (sums / "gate").touch()  # all calls of the tool wait: every episode that calls it has a turn before it
    seen = []
    playing = asyncio.create_task(play_all(workers, ORDERS, lambda trajectory: seen.append(trajectory.trajectory_id)))
    await until(lambda: len(busy(workers)) == 2, playing)
    (tmp_path / "workers").write_text("1\n")
    await until(lambda: workers.metrics()["workers/draining"] == 1, playing)
    (leaving,) = [slot for slot in workers.slots if slot.is_retired]
    pid, waiting = leaving.worker.pid, leaving.in_flight
    assert waiting
    sampled = (sums / "log").read_text().splitlines()
    (late,) = make_requests("late", [1], n=4, seed=0)
    after = asyncio.create_task(workers.play(late))
    (sums / "gate").unlink()
    groups = await playing
    assert said(groups) == expected
    assert sorted(seen) == sorted(name for name, *_ in expected), "each trajectory was shown once"
    assert not {t.metrics["worker_pid"] for t in (await after).trajectories} & {pid}
    again = [line for line in (sums / "log").read_text().splitlines()[len(sampled) :] if not line.startswith("late")]
    assert len(again) == sum(t.num_turns == 2 for group in groups for t in group.trajectories), "no turn sampled twice"
    await until(lambda: leaving.life.done())
    metrics = workers.metrics()
    assert sum(t.metrics["worker_pid"] == pid for group in groups for t in group.trajectories) >= waiting
    assert (metrics["workers/alive"], metrics["workers/draining"]) == (1, 0)
    assert not workers.failures
    await workers.close()


async def test_other_workers_continue_the_episodes_of_a_leaving_worker(steady, sums, tmp_path):
    config = steady("engine.max_concurrency=20", "workers.drain_seconds=0")
    expected = await alone(config)
    workers = await started(config, tmp_path)
    (sums / "gate").touch()
    playing = asyncio.create_task(play_all(workers, ORDERS))
    await until(lambda: len(busy(workers)) == 2, playing)
    await until(lambda: all(len(o.turns) == len(o.missing) for s in busy(workers) for o in s.worker.requests), playing)
    workers.resize(1)
    (leaving,) = [slot for slot in workers.slots if slot.is_retired]
    handed_over = leaving.in_flight
    await until(lambda: leaving.worker is None, playing)
    (sums / "gate").unlink()
    assert said(await playing) == expected
    await until(lambda: workers.metrics()["workers/recalled_turns"] == handed_over)
    assert not workers.failures, "to leave is no failure"
    await workers.close()


async def test_more_workers_take_part_when_they_are_ready_and_impossible_numbers_are_refused(steady, sums, tmp_path):
    config = steady("engine.max_concurrency=4")
    workers = await started(config, tmp_path)
    assert workers.room() == 8
    workers.resize(3)
    assert workers.room() == 12, "orders wait for it"
    await until(lambda: workers.metrics()["workers/alive"] == 3)
    with pytest.raises(UserError, match=r"workers\.count is 99 and each worker needs 1 CPUs"):
        workers.resize(99)
    with pytest.raises(UserError, match="A run needs a worker"):
        workers.resize(0)
    workers.resize(1)
    assert workers.room() == 4
    assert len(await play_all(workers, ORDERS)) == 5
    await workers.close()
