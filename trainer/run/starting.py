"""Start the workers and load the learner of a run, concurrently if they share neither process nor GPU."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path

from agentloop.config.resolved import ResolvedConfig
from agentloop.process.threads import LEARNER
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import make_learner
from agentloop.trainer.schedule.observers import Part, Stage, StageTimer
from agentloop.trainer.workers.protocol import Workers


async def start(config: ResolvedConfig, workers: Workers, folder: Path, timer: StageTimer) -> Learner:
    """Start `workers`; return the learner, which the caller must close. Raises `UserError` if either is unusable.

    A learner loads after engines in its process, because transformers patches torch for all threads while it loads a
    model, and after engines on its GPU, because an engine measures free memory when it starts.
    """
    with timer.stage(Stage.LOAD):
        await workers.reserve()
        if _are_apart(config):
            return await _start_both(config, workers, folder, timer)
        with timer.part(Part.WORKERS):
            await workers.start()
        if config.placement.sleeps:
            await workers.sleep()  # make room for the learner to load
        with timer.part(Part.LEARNER):
            return make_learner(config, folder, workers.reservation)


def _are_apart(config: ResolvedConfig) -> bool:
    """Return whether no worker shares the learner's process or one of its GPUs."""
    has_own_gpus = config.learner.device == "cpu" or config.learner_gpus_per_node > 0
    return config.workers.kind == "ray" and has_own_gpus and not config.placement.sleeps


async def _start_both(config: ResolvedConfig, workers: Workers, folder: Path, timer: StageTimer) -> Learner:
    starting = asyncio.create_task(_start(workers, timer))
    loading = LEARNER.submit(make_learner, config, folder, workers.reservation)
    try:
        with timer.part(Part.LEARNER):
            learner = await asyncio.wrap_future(loading)
        await starting
    except BaseException:
        loading.add_done_callback(_close)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    return learner


async def _start(workers: Workers, timer: StageTimer) -> None:
    with timer.part(Part.WORKERS):
        await workers.start()


def _close(loading: Future[Learner]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
