"""Engines of players that do not learn: started when an episode needs one, and shared by all episodes."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

from agentloop import engines
from agentloop.engines.base import Engine
from agentloop.envs.players.program import Seat
from agentloop.errors import EngineError, UserError
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.rendering.base import Renderer
from agentloop.rendering.transcript import Transcript

Opponent = tuple[Engine, Renderer]

_STARTED: dict[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Opponent]]] = {}


async def opponent_of(seat: Seat, seed: int) -> Opponent:
    """Return the engine and the renderer of a seat. `seed` selects one of several models.

    Raises `UserError` if the engine cannot be created, and `EngineError` if it cannot start.
    """
    assert seat.engine is not None
    options = dict(seat.options)
    if seat.models is not None:
        options["model"] = drawn_model(seat.models, seed)
    started = _STARTED.setdefault(asyncio.get_running_loop(), {})
    key = json.dumps([seat.engine, options], sort_keys=True)
    if key not in started or _may_start_now(started[key]):
        started[key] = asyncio.ensure_future(_start(seat.engine, options))
    return await asyncio.shield(started[key])


def _may_start_now(earlier: asyncio.Task[Opponent]) -> bool:
    """Return whether another attempt is worthwhile: a service may be up by now, or memory free."""
    return earlier.done() and not earlier.cancelled() and isinstance(earlier.exception(), EngineError)


def drawn_model(folder: str, seed: int) -> str:
    """Return one of the model folders in `folder`, which may grow during the run. Raises `UserError` if it has none."""
    found = sorted(path.parent for path in Path(folder).expanduser().glob("*/config.json"))
    if not found:
        raise UserError(
            f"The folder {folder} of a player has no models: export one with `agentloop export RUN {folder}/NAME`."
        )
    return str(found[seed % len(found)])


async def close_opponents() -> None:
    """Close the engines that were started in the running event loop, and those that are starting."""
    tasks = list(_STARTED.pop(asyncio.get_running_loop(), {}).values())
    for task in tasks:
        task.cancel()  # does nothing if it has started
    found = await asyncio.gather(*tasks, return_exceptions=True)
    async with AsyncExitStack() as stack:
        for opponent in found:
            if not isinstance(opponent, BaseException):
                stack.push_async_callback(opponent[0].close)


async def _start(name: str, options: dict[str, object]) -> Opponent:
    engine = engines.create(name, **options)
    read_turn = engines.ENGINES.get(name).read_turn
    if read_turn is not None:
        renderer: Renderer = Transcript(load_object(read_turn, "engine"))
    elif "model" in options:
        renderer = renderer_for(Path(str(options["model"])))
    else:
        raise UserError(f"A player with the engine {name} needs `options: {{model: FOLDER}}`, or `models`.")
    async with AsyncExitStack() as on_failure:
        on_failure.push_async_callback(engine.close)
        try:
            await engine.start()
        except UserError:
            raise
        except Exception as error:  # a library of the engine may raise anything
            raise EngineError(f"the engine {name} of a player cannot start: {error}") from error
        on_failure.pop_all()
    return engine, renderer
