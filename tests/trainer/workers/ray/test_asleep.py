"""`RayWorkers` that sleep: real actors, killed while they do."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch

from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.train import train
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.workers.requests import make_requests
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.usefixtures("ray"), pytest.mark.slow]


async def until(condition):
    """Poll, because other processes do not notify a test."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_worker_killed_asleep_starts_when_it_is_to_wake_with_the_weights_that_came_meanwhile(steady):
    config = steady()
    config = config.replace(workers=config.workers.replace(kind="ray", count=2))
    workers = make_workers(resolve(config, Facts(model=Path(config.model))), None)
    await workers.start()
    await workers.sleep()
    (order,) = make_requests("x", [3], n=4, seed=1)
    playing = asyncio.create_task(workers.play(order))
    for slot in workers.slots:
        os.kill(slot.worker.pid, signal.SIGKILL)
    await until(lambda: not any(slot.worker for slot in workers.slots))
    await workers.update_weights(TensorWeights([("w", torch.ones(1))]), 5)
    assert not playing.done()
    assert workers.metrics()["workers/alive"] == 0, "the GPUs are the learner's"
    await workers.wake()
    group = await playing
    assert {int(version) for trajectory in group.trajectories for version in trajectory.versions} <= {-1, 5}
    await until(lambda: all(slot.worker for slot in workers.slots))
    await workers.sleep()  # all of them, also the one that has just been started
    await workers.wake()
    assert len((await workers.play(order)).trajectories) == 4
    await workers.close()


async def test_a_run_on_workers_that_sleep_is_one_without(sums, tmp_path):
    def settings(*more):
        usual = ["run.loggers=[]", "eval.every=0", "run.steps=3", "workers.kind=ray"]
        return load_config(RunConfig, sums / "config.yaml", [*usual, *more])

    def comparable(folder):
        kept = ("reward/mean", "learner/loss", "learner/grad_norm", "step", "policy_version")
        return [{name: line[name] for name in kept} for line in RunFolder(folder).read_metrics()]

    await train(settings(), tmp_path / "awake")
    await train(settings("placement.sleep=true"), tmp_path / "asleep")
    assert comparable(tmp_path / "asleep") == comparable(tmp_path / "awake")
    assert all("time/wake" in line for line in RunFolder(tmp_path / "asleep").read_metrics())
