"""`Records`: the files of one run as plain data for the page."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.run.folder import RunFolder, step_of
from agentloop.trainer.run.lock import holder
from agentloop.trainer.viewer.metrics_file import MetricsFile
from agentloop.types.messages import valid_strings
from agentloop.types.trajectory_io import DAMAGE, check_version, damaged

_ROLLOUT = "trajectories.jsonl"
_FILES_KEPT = 4
"""Number of trajectory files to cache, because showing a part of a file reads all of it."""
_TASK_CHARACTERS = 300
"""Largest number of characters of a task in a table."""


def is_run(folder: Path) -> bool:
    """Return whether `agentloop train` or `agentloop rollout` wrote the folder.

    Recipes and other programs have a config.yaml, too, but none of the other files.
    """
    run = RunFolder(folder)
    has_steps = run.trajectories.is_dir() or run.metrics_file.is_file()
    return (run.config_file.is_file() and has_steps) or (folder / _ROLLOUT).is_file()


class Records:
    """The files of one run, read on each request, so that the run may still be running.

    Raises `UserError` if neither `agentloop train` nor `agentloop rollout` wrote the folder.
    """

    def __init__(self, root: Path) -> None:
        self.folder = RunFolder(root)
        if not is_run(root):
            raise UserError(
                f"{root} is not a run folder: it has neither a config.yaml with trajectories or metrics.jsonl nor a "
                f"{_ROLLOUT}. `agentloop train` prints the folder of a run at its start."
            )
        self._metrics = MetricsFile(self.folder.metrics_file)
        self._kept: OrderedDict[tuple[Path, int, int], list[dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        """Return the state that changes during a run; the page polls it every few seconds."""
        generation, lines = self._metrics.read()
        return {
            "path": str(self.folder.root.resolve()),
            "state": self._state(),
            "generation": generation,
            "lines": len(lines),
            "last_step": lines[-1]["step"] if lines else None,
            "steps": self._steps(),
            "files": self.files(),
        }

    def _state(self) -> str:
        if not self.folder.config_file.is_file():
            return "rollout"
        if holder(self.folder.root):
            return "running"
        return "finished" if self.folder.model.is_dir() else "stopped"

    def _steps(self) -> int | None:
        """Return the number of steps of the whole run; None if its config does not say or cannot be read."""
        try:
            run = self.config().get("run")
        except UserError:  # the page of the config shows it
            return None
        return run.get("steps") if isinstance(run, dict) else None

    def config(self) -> dict[str, Any]:
        """Return the resolved configuration; empty for a rollout."""
        return self.folder.read_config() or {}

    def metrics(self, since: int = 0) -> list[dict[str, float | None]]:
        """Return the lines of the metrics file from number `since` on, in order."""
        return self._metrics.read()[1][since:]

    def files(self) -> list[dict[str, Any]]:
        """Return the trajectory files: name, kind (train, eval or rollout), step, bytes."""
        found = []
        for name, path in self._paths().items():
            with suppress(FileNotFoundError):  # a resumed run removes files of steps that it repeats
                found.append({"name": name, "kind": _kind(name), "step": step_of(path), "bytes": path.stat().st_size})
        return found

    def episodes(self, name: str) -> list[dict[str, Any]]:
        """Return a summary of each trajectory of a file. Raises `KeyError` if there is no such file."""
        return [{"index": index} | _summary(data) for index, data in enumerate(self._read(name))]

    def episode(self, name: str, index: int) -> dict[str, Any]:
        """Return one trajectory as written (`agentloop.types.trajectory_io`). Raises `KeyError` if there is none."""
        trajectories = self._read(name)
        if not 0 <= index < len(trajectories):
            raise KeyError(f"{name} has {len(trajectories)} episodes")
        return trajectories[index] | {"file_kind": _kind(name)}

    def _paths(self) -> dict[str, Path]:
        """Return the trajectory files by name, without suffix."""
        found = sorted(self.folder.trajectories.glob("[!.]*.jsonl.gz"), key=lambda path: (step_of(path) or 0, path))
        rollout = self.folder.root / _ROLLOUT
        return {path.name.partition(".")[0]: path for path in [*found, rollout] if path.is_file()}

    def _read(self, name: str) -> list[dict[str, Any]]:
        path = self._paths().get(name)
        missing = KeyError(f"there is no trajectory file {name!r}")
        if path is None:
            raise missing
        try:
            return self._lines_of(path)
        except FileNotFoundError as error:  # a resumed run has removed it meanwhile
            raise missing from error

    def _lines_of(self, path: Path) -> list[dict[str, Any]]:
        with self._lock:
            state = path.stat()
            key = path, state.st_mtime_ns, state.st_size
            if key not in self._kept:
                self._kept[key] = _lines(path)
                while len(self._kept) > _FILES_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _kind(name: str) -> str:
    """Return the kind of a trajectory file (train, eval or rollout) from its name without suffix."""
    return {"eval": "eval", "step": "train"}.get(name.partition("_")[0], "rollout")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines; the last line of a file may still be incomplete.

    Files keep lone surrogates, as in rows of a dataset, and answers to the page cannot contain them. Raises `UserError`
    for a damaged file and for a line that is not a trajectory.
    """
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        try:
            found = [valid_strings(json.loads(line)) for line in file if line.endswith("\n")]
        except (*DAMAGE, json.JSONDecodeError) as error:
            raise damaged(path, error) from error
    for number, data in enumerate(found, 1):
        try:
            check_version(data)
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    return found


def _summary(data: dict[str, Any]) -> dict[str, Any]:
    sampled = [segment for segment in data["segments"] if segment["kind"] == "sampled"]
    versions = [version for segment in sampled for version, _ in segment["versions"]]
    return {
        "id": data["trajectory_id"],
        "task": task_text(data)[:_TASK_CHARACTERS],
        "reward": data["reward"],
        "stop": data["stop_reason"],
        "turns": len(sampled),
        "calls": int(data["metrics"].get("calls", 0)),
        "tokens": sum(len(segment["ids"]) for segment in data["segments"]),
        "sampled": sum(len(segment["ids"]) for segment in sampled),
        "images": len(data["images"]),
        "seconds": data["metrics"].get("seconds"),
        "versions": [min(versions), max(versions)] if versions else None,
        "failures": {kind: count for kind, count in data["failures"].items() if count},
        "error": data["error"],
    }


def task_text(data: dict[str, Any]) -> str:
    """Return the text of the task: the last user message before the model's first turn."""
    before = itertools.takewhile(lambda message: message["role"] != "assistant", data["messages"])
    asked = [message["content"] for message in before if message["role"] == "user"]
    if not asked:
        return ""
    parts = asked[-1] if isinstance(asked[-1], list) else [{"type": "text", "text": asked[-1]}]
    return " ".join(part["text"] if part["type"] == "text" else "[image]" for part in parts).strip()
