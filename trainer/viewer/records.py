"""`Records`: the files of a run as plain data for the page."""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.run.folder import RunFolder, step_of

_ROLLOUT = "trajectories.jsonl"
_FILES_KEPT = 4
"""Trajectory files kept in memory, because showing a part of a file reads all of it."""


class Records:
    """The files of one run, read at each request, so that the run may still be going on.

    Raises `UserError` if neither `agentloop train` nor `agentloop rollout` wrote the folder.
    """

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        if not (self.folder.config_file.is_file() or (root / _ROLLOUT).is_file()):
            raise UserError(
                f"{root} is not a run folder: it has neither a config.yaml nor a {_ROLLOUT}. `agentloop train` prints "
                "the folder of a run at its start."
            )
        self._kept: OrderedDict[tuple[Path, int, int], list[dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration; empty for a rollout."""
        return self.folder.read_config() or {}

    def metrics(self, since: int = 0) -> list[dict[str, float]]:
        """Return the metrics of the steps from number `since` on, in order."""
        return self.folder.read_metrics()[since:]

    def files(self) -> list[dict[str, Any]]:
        """Return the trajectory files: name, kind (train, eval or rollout), step, MiB."""
        found = [
            {"name": path.name, "kind": "eval" if path.name.startswith("eval") else "train", "step": step_of(path)}
            | _size(path)
            for path in sorted(self.folder.trajectories.glob("[!.]*.jsonl.gz"))
        ]
        rollout = self.folder.root / _ROLLOUT
        if rollout.is_file():
            found.append({"name": _ROLLOUT, "kind": "rollout", "step": None} | _size(rollout))
        return found

    def kind(self, name: str) -> str:
        """Return the kind of a trajectory file. Raises `KeyError` if there is no such file."""
        kinds = {file["name"]: file["kind"] for file in self.files()}
        return str(kinds[name])

    def summaries(self, name: str) -> list[dict[str, Any]]:
        """Return a summary of each trajectory of a file. Raises `KeyError` if there is no such file."""
        return [{"index": index} | _summary(data) for index, data in enumerate(self._read(name))]

    def trajectory(self, name: str, index: int) -> dict[str, Any]:
        """Return one trajectory as written (`agentloop.types.trajectory_io`). Raises `KeyError` if there is none."""
        trajectories = self._read(name)
        if not 0 <= index < len(trajectories):
            raise KeyError(f"{name} has {len(trajectories)} trajectories")
        return trajectories[index]

    def _read(self, name: str) -> list[dict[str, Any]]:
        if name not in {file["name"] for file in self.files()}:
            raise KeyError(f"there is no trajectory file {name!r}")
        path = self.folder.root / name if name == _ROLLOUT else self.folder.trajectories / name
        state = path.stat()
        key = path, state.st_mtime_ns, state.st_size
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _lines(path)
                while len(self._kept) > _FILES_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _size(path: Path) -> dict[str, float]:
    return {"mib": round(path.stat().st_size / 2**20, 2)}


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines; the last line of a file may still be incomplete."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _summary(data: dict[str, Any]) -> dict[str, Any]:
    sampled = [segment for segment in data["segments"] if segment["kind"] == "sampled"]
    versions = [version for segment in sampled for version, _ in segment["versions"]]
    return {
        "id": data["trajectory_id"],
        "group": data["group_id"],
        "reward": data["reward"],
        "stop": data["stop_reason"],
        "turns": len(sampled),
        "calls": int(data["metrics"].get("calls", 0)),
        "tokens": sum(len(segment["ids"]) for segment in data["segments"]),
        "sampled": sum(len(segment["ids"]) for segment in sampled),
        "images": len(data["images"]),
        "seconds": data["metrics"].get("seconds"),
        "versions": [min(versions), max(versions)] if versions else None,
        "failures": data["failures"],
    }
