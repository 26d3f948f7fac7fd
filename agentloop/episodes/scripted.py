"""`play_script`: plays an episode with given turns, to test environments, tools and rewards without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentloop.engines.base import SamplingParams
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.workers.pool import close_pools
from agentloop.episodes.loop import AgentLoop
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import EngineError
from agentloop.players.opponents import close_opponents
from agentloop.types.limits import Limits

if TYPE_CHECKING:
    from agentloop.envs.base import Env
    from agentloop.types.trajectory import Trajectory

_NO_LIMIT = 2**31 - 1


def play_script(env: Env, turns: Sequence[str], **limits: float) -> Trajectory:
    """Play an episode whose model turns are `turns`, with real tools, checks and scores.

    A turn calls a tool as Hermes models do: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. `limits` are
    fields of `Limits`, which count characters as tokens. An episode that needs more turns ends with an engine error.
    """

    def script(trajectory_id: str, turn: int, prompt: Sequence[int], params: SamplingParams) -> list[int]:
        if turn >= len(turns):
            raise EngineError(f"The script has only {len(turns)} turns, but the episode needs another: add one.")
        return [*map(ord, turns[turn]), END]

    bounds = {"max_turn_tokens": _NO_LIMIT, "max_tokens": _NO_LIMIT} | limits
    engine = ScriptedEngine(script, max_model_len=_NO_LIMIT)
    return asyncio.run(_play(AgentLoop(engine, TextRenderer(), limits=Limits(**bounds)), env))  # type: ignore[arg-type]


async def _play(loop: AgentLoop, env: Env) -> Trajectory:
    try:
        if env.toolset is not None:
            await env.toolset.start()
        return await loop.run(env, trajectory_id="scripted")
    finally:
        close_pools()
        await close_opponents()
        if env.toolset is not None:
            await env.toolset.shutdown()
