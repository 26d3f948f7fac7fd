"""Agent programs of a test, played on Ray workers: what a test defines travels by value."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cloudpickle

from agentloop import AgentLoop, Limits
from agentloop.config.workers import WorkersConfig
from agentloop.engines.replay import TurnRecord
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.agent.program import AgentProgram
from agentloop.episodes.worker import RolloutWorker
from agentloop.process.restart_budget import RestartBudget
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.toolset import Toolset
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.pool import RayWorkers
from agentloop.trainer.workers.ray.replica import Parts
from agentloop.types.requests import RolloutRequest
from agentloop.types.trajectory import Trajectory

ROW = {"messages": [{"role": "user", "content": "2 + 3?"}], "answer": "5"}
HELLO = "hello<|im_end|>"


def make_parts(folder: Path, limits: Limits) -> Parts:
    """Make a worker whose request for row n plays the agent in the nth file of the folder."""
    tokenizer = build_tokenizer()
    turns = TurnRecord()
    ids = tokenizer.backend_tokenizer.encode(HELLO, add_special_tokens=False).ids
    engine = RestartingEngine(partial(ScriptedEngine, [ids]), budget=RestartBudget(), turns=turns)

    def make_env(request: RolloutRequest) -> AgentProgram:
        return AgentProgram(ROW, **cloudpickle.loads((folder / str(request.row)).read_bytes()))

    def worker(engine: RestartingEngine) -> RolloutWorker:
        return RolloutWorker(AgentLoop(engine, renderer_for(tokenizer), limits=limits), make_env)

    return Parts(LocalWorkers(SimpleNamespace(worker=worker, toolset=Toolset([]), reward=None), engine), turns)


@contextmanager
def programs_on_ray(folder: Path) -> Iterator[Callable[..., Trajectory]]:
    """Yield a function that plays an agent with the options of `AgentProgram`, on one worker for each set of limits."""
    running: dict[Limits, RayWorkers] = {}
    count = 0

    async def play(limits: Limits, row: int) -> Trajectory:
        if limits not in running:
            workers = RayWorkers(
                partial(make_parts, folder, limits),
                WorkersConfig(kind="ray", cpus=0.1, hang_seconds=600),
                most=4,
                longest=1000,
                stall_seconds=600,
            )
            await workers.start()
            running[limits] = workers
        group = await running[limits].play(RolloutRequest(group_id="g", row=row, n=1, seed=3))
        return group.trajectories[0]

    with asyncio.Runner() as runner:

        def run(agent: object = None, limits: dict[str, float] | None = None, **options: object) -> Trajectory:
            nonlocal count
            count += 1
            (folder / str(count)).write_bytes(cloudpickle.dumps({"agent": agent, **options}))
            return runner.run(play(Limits(**(limits or {})), count))

        try:
            yield run
        finally:
            # The first ones have started Ray and end it; calls after its end would start it again.
            for workers in reversed(running.values()):
                runner.run(workers.close())
