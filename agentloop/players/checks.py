"""Check the players of a run before it starts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from agentloop.engines import ENGINES
from agentloop.envs.players.program import PlayersProgram
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.registry.options import check_call

Row = dict[str, Any]


def check_players(rows: Iterable[Row], make_program: Callable[[Row], Any]) -> None:
    """Make the program of each row with other players, and load its scripts.

    Raises `UserError` if the program cannot be made, if a script does not exist or cannot be called, and for unknown
    engines and missing model folders. Engines start when an episode needs them, and folders of models may be empty
    until then.
    """
    distinct = {json.dumps(row.get("players"), sort_keys=True, default=str): row for row in rows}
    for row in distinct.values():
        program = make_program(row)
        assert isinstance(program, PlayersProgram)
        for seat in program.candidates:
            if seat.script is not None:
                script = load_object(seat.script, "player")
                check_call(script, {}, [], random.Random(), of=f"player {seat.script!r}", call="(conversation, rng)")
            if seat.engine is not None:
                ENGINES.check(seat.engine)
                _check_folder(seat.options.get("model"))


def _check_folder(model: object) -> None:
    """Raise `UserError` for the path of a folder that does not exist; other texts may be names of a hub."""
    folder = Path(model).expanduser() if isinstance(model, str) else None
    if folder is not None and folder.is_absolute() and not folder.is_dir():
        raise UserError(f"There is no model folder {model} for a player. Set its `model` to a folder that exists.")
