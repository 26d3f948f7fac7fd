"""Checkpoints of a run: `checkpoints/step_000010/` with the learner's folder and `state.json`.

A checkpoint appears whole or not at all. There is no state of random generators in it: each step seeds them anew from
the run's seed and its number.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentloop.envs.sampler import SamplerState
from agentloop.trainer.backends.folders import appearing
from agentloop.trainer.learner import Learner
from agentloop.trainer.run_folder import step_name, step_of

_STATE = "state.json"
_LEARNER = "learner"


@dataclass(slots=True)
class RunState:
    """Where a run is after `step`, apart from the learner."""

    step: int
    policy_version: int
    sampler: SamplerState
    config: dict[str, Any]
    """Resolved, to compare with at a resume."""


def save_checkpoint(folder: Path, learner: Learner, state: RunState, *, keep_last: int) -> None:
    """Write `folder/step_<n>` and remove all but the `keep_last` newest."""
    with appearing(folder / step_name(state.step)) as target:
        learner.save(target / _LEARNER)
        (target / _STATE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    for old in _complete(folder)[:-keep_last]:
        shutil.rmtree(old)


def latest_checkpoint(folder: Path) -> tuple[Path, RunState] | None:
    """The newest checkpoint: the folder of its learner, and its state."""
    complete = _complete(folder)
    if not complete:
        return None
    newest = complete[-1]
    return newest / _LEARNER, RunState(**json.loads((newest / _STATE).read_text(encoding="utf-8")))


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    complete = _complete(folder)
    for path in folder.iterdir():
        if path.is_dir() and path not in complete:
            shutil.rmtree(path)


def _complete(folder: Path) -> list[Path]:
    """Oldest first."""
    found = [path for path in folder.iterdir() if path.name == step_name(step_of(path) or 0)]
    return sorted((path for path in found if (path / _STATE).is_file()), key=lambda path: step_of(path) or 0)
