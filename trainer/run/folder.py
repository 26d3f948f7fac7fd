"""`RunFolder`: the files that a run writes.

config.yaml                        the resolved config; `agentloop train FOLDER/config.yaml` resumes the run
metrics.jsonl                      one line for each step; step 0 is the evaluation before training
trajectories/step_000001.jsonl.gz, eval_000000.jsonl.gz
checkpoints/step_000010/           see `agentloop.trainer.run.checkpoints`
model/                             the trained model in Hugging Face format, written when the run ends
exported/step_000010/              the model of a checkpoint, written when it is first used
tensorboard/, wandb/
run.lock                           the process that writes to this folder
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from agentloop.errors import UserError
from agentloop.process.atomic import atomic_file, replaced, write_text
from agentloop.trainer.run.lock import LOCK, check_free
from agentloop.types.trajectory_io import write_jsonl

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_STEP = re.compile(r"(?:step|eval)_(\d{6,})")
_TRAJECTORIES = re.compile(r"(?:\.tmp-)?(?:step|eval)_(\d{6,})\.jsonl\.gz")
"""Names of the files that a run writes; `atomic_file` writes the hidden ones."""


def step_name(step: int) -> str:
    """Return the name of the checkpoint or trajectory file of a step, without a suffix."""
    return f"step_{step:06d}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a file or folder; None for other names."""
    match = _STEP.match(path.name)
    return int(match[1]) if match else None


def check_writable(folder: Path) -> None:
    """Raise `OSError` if a folder, which may be missing, could not be created or written to, without creating it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    TemporaryDirectory(prefix=".agentloop-", dir=existing).cleanup()


class RunFolder:
    """The paths of a run. Reads and writes its plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config_file = root / "config.yaml"
        self.metrics_file = root / "metrics.jsonl"
        self.trajectories = root / "trajectories"
        self.checkpoints = root / "checkpoints"
        self.model = root / "model"
        self.exported = root / "exported"

    def check(self) -> None:
        """Raise `UserError` if `make` would or another run uses the folder, without creating it."""
        with self._naming_unwritable():
            self._check_files()
            check_free(self.root)
            check_writable(self.root)

    def make(self) -> None:
        """Create the folder. Raises `UserError` if it contains other files, or is not writable."""
        with self._naming_unwritable():
            self._check_files()
            self.trajectories.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            (self.root / LOCK).touch()

    def _check_files(self) -> None:
        before_config = {self.trajectories.name, self.checkpoints.name, LOCK}
        others = {path.name for path in self.root.iterdir()} - before_config if self.root.is_dir() else set()
        if others and not self.config_file.is_file():
            raise UserError(
                f"{self.root} is not empty and not a run folder: it has no config.yaml. Set run.folder to a new folder."
            )

    @contextmanager
    def _naming_unwritable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"The run folder {self.root} cannot be written to: {error.strerror}. Set run.folder to another folder."
            ) from error

    def read_config(self) -> dict[str, Any] | None:
        """Return the config that the run was started with; None for a new run. Raises `UserError` if it is not YAML."""
        if not self.config_file.is_file():
            return None
        try:
            config = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self.config_file} is not valid YAML: {error}. Restore the file, or set run.folder to a new folder."
            ) from error
        return config if isinstance(config, dict) else None

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_text(self.config_file, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    def append_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append one line and sync it to disk, so that no checkpoint has steps that the file lacks."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, float]]:
        """Return all complete lines; skip an incomplete last line. Raises `UserError` for any other unreadable line."""
        if not self.metrics_file.is_file():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        return [self._metrics_of(line, number) for number, line in enumerate(lines, 1) if line]

    def _metrics_of(self, line: str, number: int) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{self.metrics_file}, line {number} is not JSON: {error}. Delete the line.") from error
        return found

    def write_trajectories(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Write trajectories under a name such as step_<n> or eval_<n>."""
        path = self.trajectories / f"{name}.jsonl.gz"
        with atomic_file(path) as temporary:
            write_jsonl(temporary, trajectories)

    def forget_after(self, step: int) -> None:
        """Remove the metrics, trajectories and models of steps after `step`, which are about to be repeated.

        Files that a run does not write are kept.
        """
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        if self.metrics_file.is_file():
            write_text(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))
        for path in self.trajectories.iterdir():
            ours = _TRAJECTORIES.fullmatch(path.name)
            if ours and (int(ours[1]) > step or path.name.startswith(".")):
                path.unlink()
        for folder in self.exported.iterdir() if self.exported.is_dir() else ():
            if (exported := step_of(folder)) is not None and exported > step:
                shutil.rmtree(folder)

    def forget_model(self) -> None:
        """Remove the model of an earlier end of a run that now trains further; its last checkpoint has it, too."""
        if self.model.is_dir():
            old = replaced(self.model)
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(self.model.rename(old))  # if killed, this leaves a hidden folder, not a partial model
