"""Checkpoints of a run: write them in the background, find the newest, remove old and unfinished ones.

A checkpoint is a folder such as `checkpoints/step_000010/`, which is written atomically. It contains the learner's
folder, `state.json`, and `queue.jsonl.gz` if finished groups were waiting for training. It has no state of random
generators, because each step seeds them from the run's seed and the step number.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.process.atomic import atomic_folder, replaced
from agentloop.process.full_disk import naming_full_disk
from agentloop.process.threads import LEARNER
from agentloop.trainer.learner.protocol import Captured, Learner
from agentloop.trainer.run.folder import step_name, step_of
from agentloop.trainer.schedule.queue import QueueState
from agentloop.types.trajectory_io import read_jsonl, write_jsonl

FORMAT = 2
"""Format of `state.json` and the queue. Checkpoints in another format cannot be resumed; format 1 has no number."""
_STATE = "state.json"
_QUEUE = "queue.jsonl.gz"
_LEARNER = "learner"
_UNFINISHED = re.compile(r"\.(?:tmp|old)-step_\d{6,}")
"""Names of hidden folders that `atomic_folder` leaves if it is killed."""


@dataclass(slots=True)
class RunState:
    """The state of a run after `step`, without the learner."""

    step: int
    """Completed steps; equal to the policy version of the learner."""
    sampler: Mapping[str, Any]
    """Position in the datasets: the state of the sampler."""
    config: dict[str, Any]
    """The resolved config, with which a resumed run compares its own."""
    queue: QueueState = field(default_factory=QueueState)
    bias: Mapping[str, Any] = field(default_factory=dict)
    """Lengths of the episodes so far: the state of `LengthBias`."""


class CheckpointWriter:
    """Writes `folder/step_<n>` while training continues, and removes all but the `keep_last` newest checkpoints.

    It writes at most one checkpoint at a time, because each copy in memory is as large as the learner.
    """

    def __init__(self, folder: Path, *, keep_last: int) -> None:
        self._folder = folder
        self._keep_last = keep_last
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    async def save(self, learner: Learner, state: RunState) -> None:
        """Copy the learner's state and return while it is written, without blocking the event loop.

        Waits for the previous checkpoint first; raises as `wait` does if that failed.
        """
        await self.wait()
        captured = await LEARNER.run(learner.capture)
        self._writing = self._thread.submit(self._write, captured, state)

    async def wait(self) -> None:
        """Wait until the last checkpoint is on disk. Raises `UserError` if it could not be written."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            with naming_full_disk(self._folder):
                await asyncio.to_thread(writing.result)
        except OSError as error:
            raise UserError(
                f"A checkpoint could not be written to {self._folder}: {error}. Make room there or lower "
                "run.keep_last, then run again: training resumes from the previous checkpoint."
            ) from error

    async def close(self) -> None:
        """Wait for a checkpoint that is being written; ignore its errors."""
        await asyncio.to_thread(self._thread.shutdown)

    def _write(self, captured: Captured, state: RunState) -> None:
        with atomic_folder(self._folder / step_name(state.step)) as target:
            captured.write(target / _LEARNER)
            if trajectories := state.queue.trajectories:
                write_jsonl(target / _QUEUE, trajectories)
            plain = {each.name: getattr(state, each.name) for each in fields(state)}
            plain |= {"queue": state.queue.as_json(), "format": FORMAT}
            (target / _STATE).write_text(json.dumps(plain, indent=1), encoding="utf-8")
        remove_old(self._folder, keep_last=self._keep_last)


def latest_checkpoint(folder: Path) -> tuple[Path, RunState] | None:
    """Return the newest checkpoint, as the folder of its learner and its state; None if there is none.

    Raises `UserError` if it is damaged, or if another version of agentloop wrote it in another format.
    """
    complete = _complete(folder)
    if not complete:
        return None
    newest = complete[-1]
    try:
        plain = json.loads((newest / _STATE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{newest / _STATE} is damaged ({error}). Remove {newest} to resume from the checkpoint before it."
        ) from error
    found = plain.pop("format", 1)
    if found != FORMAT:
        raise UserError(
            f"The checkpoint {newest} has format {found}, but this version of agentloop resumes only format {FORMAT}. "
            "Finish the run with the version that started it, or set run.folder to a new folder and model to "
            "the model of the old run."
        )
    return newest / _LEARNER, RunState(**plain | {"queue": _read_queue(plain["queue"], newest / _QUEUE)})


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in ascending order."""
    return [step for step in map(step_of, _complete(folder)) if step is not None]


def _read_queue(plain: dict[str, Any], file: Path) -> QueueState:
    trajectories = list(read_jsonl(file)) if file.is_file() else []
    try:
        return QueueState.from_json(plain, trajectories)
    except ValueError as error:
        raise UserError(
            f"{file} lacks trajectories that {_STATE} lists: {error}. Remove the folder {file.parent}."
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Remove partly written or partly removed checkpoints of a killed process; keep other folders."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path)


def remove_old(folder: Path, *, keep_last: int) -> None:
    """Remove all but the newest checkpoints."""
    for old in _complete(folder)[:-keep_last]:
        shutil.rmtree(old.rename(replaced(old)))  # if killed, this leaves a hidden folder, not a partial checkpoint


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in paths if path.name == step_name(step_of(path) or 0)]
    return sorted((path for path in found if (path / _STATE).is_file()), key=lambda path: step_of(path) or 0)
