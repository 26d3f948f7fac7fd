"""Find the runs to show, and name each of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.viewer.records import Records, is_run

_DEPTHS = ("*", "*/*")
"""Where runs lie below a folder of runs."""


def open_runs(folders: Sequence[Path]) -> dict[str, Records]:
    """Return the runs of the folders, by name. A folder is a run, or a folder that has runs below it.

    The name is the folder's own if that is unique, else its path below what all have in common. Raises `UserError` for
    a folder without a run.
    """
    found = list(dict.fromkeys(run.resolve() for folder in folders for run in _runs_of(folder)))
    names = [run.name for run in found]
    if len(set(names)) < len(names):
        common = os.path.commonpath(found)
        names = [str(run.relative_to(common)) for run in found]
    return {name: Records(run) for name, run in zip(names, found, strict=True)}


def newest(folder: Path) -> Path:
    """Return the newest run below `folder`. Raises `UserError` if there are no runs."""
    runs = _below(folder)
    if not runs:
        raise UserError(f"There are no runs below {folder.resolve()}. Give the folder of a run: agentloop view FOLDER.")
    return max(runs, key=lambda path: path.stat().st_mtime)


def _runs_of(folder: Path) -> list[Path]:
    if not is_run(folder) and (below := _below(folder)):
        return below
    return [folder]


def _below(folder: Path) -> list[Path]:
    return sorted(path for depth in _DEPTHS for path in folder.glob(depth) if path.is_dir() and is_run(path))
