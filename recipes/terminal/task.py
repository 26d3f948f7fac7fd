"""Rows of generated terminal tasks, which are written once to the user's caches."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentloop.envs.harbor.env import tasks
from agentloop.envs.harbor.making.folder import DEFAULT_IMAGE
from agentloop.envs.harbor.making.terminal import terminal_tasks
from agentloop.process.atomic import atomic_folder

HELD_OUT_SEED = 1_000_000


def rows(
    num_rows: int = 512,
    *,
    seed: int = 0,
    levels: Sequence[int] = (1, 2, 3),
    max_steps: int = 3,
    separate: float = 0.2,
    image: str = DEFAULT_IMAGE,
) -> Iterator[dict[str, Any]]:
    """Yield rows of the tasks that `terminal_tasks` creates with these arguments."""
    arguments: dict[str, Any] = {"seed": seed, "levels": list(levels), "max_steps": max_steps}
    arguments |= {"separate": separate, "image": image}
    key = hashlib.sha256(json.dumps([num_rows, arguments], sort_keys=True).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "agentloop" / "terminal" / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as made:
            for _ in terminal_tasks(made / "tasks", num_rows, **arguments):
                pass
    yield from tasks(str(folder / "tasks"))


def held_out_rows(num_rows: int = 128, **options: Any) -> Iterator[dict[str, Any]]:
    """Yield rows of other seeds than those of `rows`."""
    yield from rows(num_rows, seed=HELD_OUT_SEED, **options)
