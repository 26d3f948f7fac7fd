"""Checkpoints of a run: write them in the background, find the newest one, remove old and unfinished ones.

A checkpoint is a folder such as `checkpoints/step_000010/`. It holds the learner's folder, `state.json`, and
`queue.jsonl.gz` if finished groups were waiting to be trained on. It appears complete or not at all. It holds no state
of random generators: each step seeds them again from the run's seed and the step number.
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
"""Form of `state.json` and of the queue. Checkpoints of another form cannot be resumed; 1 had no number."""
_STATE = "state.json"
_QUEUE = "queue.jsonl.gz"
_LEARNER = "learner"
_UNFINISHED = re.compile(r"\.(?:tmp|old)-step_\d{6,}")
"""Names of folders that `atomic_folder` writes or replaces."""


@dataclass(slots=True)
class RunState:
    """The state of a run after `step`, without the learner."""

    step: int
    """Completed steps; equal to the policy version of the learner."""
    sampler: Mapping[str, Any]
    """Position in the datasets, as their sampler gives it."""
    config: dict[str, Any]
    """The resolved config. A resumed run compares its own config with it."""
    queue: QueueState = field(default_factory=QueueState)


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
        """Copy the learner, then return while the copy is written. Waiting and copying leave the event loop free.

        Waits for the previous checkpoint first, and raises as `wait` does if that one failed.
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
        """Wait for the checkpoint that is being written, and ignore its errors."""
        await asyncio.to_thread(self._thread.shutdown)

    def _write(self, captured: Captured, state: RunState) -> None:
        with atomic_folder(self._folder / step_name(state.step)) as target:
            captured.write(target / _LEARNER)
            if trajectories := state.queue.trajectories:
                write_jsonl(target / _QUEUE, trajectories)
            plain = {each.name: getattr(state, each.name) for each in fields(state)}
            plain |= {"queue": state.queue.as_json(), "format": FORMAT}
            (target / _STATE).write_text(json.dumps(plain, indent=1), encoding="utf-8")
        for old in _complete(self._folder)[: -self._keep_last]:
            shutil.rmtree(old.rename(replaced(old)))  # a kill leaves a hidden folder, not half a checkpoint


def latest_checkpoint(folder: Path) -> tuple[Path, RunState] | None:
    """Return the newest checkpoint, as the folder of its learner and its state; None if there is none.

    Raises `UserError` if another version of agentloop wrote it in another form.
    """
    complete = _complete(folder)
    if not complete:
        return None
    newest = complete[-1]
    plain = json.loads((newest / _STATE).read_text(encoding="utf-8"))
    found = plain.pop("format", 1)
    if found != FORMAT:
        raise UserError(
            f"The checkpoint {newest} has format {found}, and this version of agentloop resumes format {FORMAT} only. "
            "Finish the run with the version that began it, or give run.folder a new folder and set model to "
            "the model of the old run."
        )
    return newest / _LEARNER, RunState(**plain | {"queue": _read_queue(plain["queue"], newest / _QUEUE)})


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in ascending order."""
    if not folder.is_dir():
        return []
    return [step for step in map(step_of, _complete(folder)) if step is not None]


def _read_queue(plain: dict[str, Any], file: Path) -> QueueState:
    trajectories = list(read_jsonl(file)) if file.is_file() else []
    try:
        return QueueState.from_json(plain, trajectories)
    except ValueError as error:
        raise UserError(
            f"{file} lacks trajectories that {_STATE} beside it lists: {error}. Remove the folder {file.parent}."
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Remove checkpoints that a killed process left partly written or partly removed; other folders stay."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path)


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [path for path in folder.iterdir() if path.name == step_name(step_of(path) or 0)]
    return sorted((path for path in found if (path / _STATE).is_file()), key=lambda path: step_of(path) or 0)
