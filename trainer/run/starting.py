"""Start the workers and load the learner of a run, at the same time where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from agentloop.config.resolved import ResolvedConfig
from agentloop.engines import ENGINES
from agentloop.process.threads import LEARNER
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import import_learner, make_learner
from agentloop.trainer.schedule.observers import Part, Stage, StageTimer
from agentloop.trainer.workers.protocol import Workers


async def start(config: ResolvedConfig, workers: Workers, folder: Path, timer: StageTimer) -> Learner:
    """Start `workers`, and return the learner, which the caller closes. Raises `UserError` if one cannot be used.

    An engine measures the free memory of its GPU while it starts, so a learner on the same GPU loads afterwards. Only
    its code is imported at the same time.
    """
    with timer.stage(Stage.LOAD):
        if _are_apart(config):
            loading = asyncio.create_task(_load(timer, LEARNER.run(make_learner, config, folder)))
            try:
                await _start(timer, workers)
            except BaseException:
                loading.add_done_callback(_close)
                raise
            return await loading
        importing = LEARNER.submit(import_learner, config.learner)
        await _start(timer, workers)
        await asyncio.wrap_future(importing)
        if config.placement.sleeps:
            await workers.sleep()  # the learner loads in its turn
        return await _load(timer, _make_here(config, folder, workers))


def _are_apart(config: ResolvedConfig) -> bool:
    """Return whether a learner of this process and a local engine may load at the same time."""
    kind = ENGINES.get(config.engine.name)
    on_gpus = kind.runs_on_gpus and config.learner.device != "cpu"
    is_local = config.workers.kind == "local" and config.learner.ranks == 1 and config.learner.nodes in (None, 1)
    return is_local and not on_gpus and not kind.loads_here and not config.placement.sleeps


async def _start(timer: StageTimer, workers: Workers) -> None:
    with timer.part(Part.WORKERS):
        await workers.start()


async def _load(timer: StageTimer, learner: Awaitable[Learner]) -> Learner:
    with timer.part(Part.LEARNER):
        return await learner


async def _make_here(config: ResolvedConfig, folder: Path, workers: Workers) -> Learner:
    return make_learner(config, folder, workers.reservation)


def _close(loading: asyncio.Future[Learner]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
