"""Find the runs to show, and name them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.viewer.records import Records, is_run

_DEPTHS = ("*", "*/*")
"""Glob patterns of runs below a folder."""


class Runs(Mapping[str, Records]):
    """The runs of folders, by name. A folder is a run, or a folder that has runs below it.

    The name is the folder's name if that is unique, or else its path below the common parent. Raises `UserError` for a
    folder without a run.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        found = self._find()
        names = [run.name for run in found]
        if len(set(names)) < len(names):
            common = os.path.commonpath(found)
            names = [str(run.relative_to(common)) for run in found]
        self._runs = {name: Records(run) for name, run in zip(names, found, strict=True)}

    def refresh(self) -> None:
        """Add runs that have started since, without renaming others; a new run whose name is taken gets its path."""
        with self._lock:
            known = {records.folder.root for records in self._runs.values()}
            for run in self._find():
                if run not in known:
                    name = run.name if run.name not in self._runs else str(run)
                    self._runs = self._runs | {name: Records(run)}  # a copy, as other threads may read the old one

    def _find(self) -> list[Path]:
        return list(dict.fromkeys(run.resolve() for folder in self._folders for run in _runs_of(folder)))

    def __getitem__(self, name: str) -> Records:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def newest(folder: Path) -> Path:
    """Return the newest run below `folder`. Raises `UserError` if there are no runs."""
    runs = _below(folder)
    if not runs:
        raise UserError(f"There are no runs below {folder.resolve()}. Pass the folder of a run: agentloop view FOLDER.")
    return max(runs, key=lambda path: path.stat().st_mtime)


def _runs_of(folder: Path) -> list[Path]:
    if not is_run(folder) and (below := _below(folder)):
        return below
    return [folder]


def _below(folder: Path) -> list[Path]:
    return sorted(path for depth in _DEPTHS for path in folder.glob(depth) if path.is_dir() and is_run(path))
