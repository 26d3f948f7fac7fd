"""Plays many environments with given turns at the same time, in one event loop."""

import asyncio
from collections.abc import Mapping, Sequence

from agentloop import AgentLoop, Limits, Trajectory
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.workers.pool import close_pools
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import EngineError

NO_LIMIT = 10**9


def play_all(envs: Mapping[str, object], turns: Mapping[str, Sequence[str]]) -> dict[str, Trajectory]:
    """The trajectories by name. `turns` are those of an environment, or of a seat of it: NAME.SEAT."""
    return asyncio.run(_play_all(envs, turns))


async def _play_all(envs, turns):
    said = dict.fromkeys(turns, 0)

    def script(trajectory_id, turn, prompt, params):
        number = said[trajectory_id]
        said[trajectory_id] += 1
        if number >= len(turns[trajectory_id]):
            raise EngineError("the script has no more turns")
        return [*map(ord, turns[trajectory_id][number]), END]

    limits = Limits(
        max_turns=NO_LIMIT, max_turn_tokens=NO_LIMIT, max_tokens=NO_LIMIT, max_parallel_calls=99, max_answered_calls=99
    )
    loop = AgentLoop(ScriptedEngine(script, max_model_len=NO_LIMIT), TextRenderer(), limits=limits)
    try:
        found = await asyncio.gather(*(loop.run(env, trajectory_id=name) for name, env in envs.items()))
        return dict(zip(envs, found, strict=True))
    finally:
        close_pools()
