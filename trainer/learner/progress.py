"""Saving and restoring learners, shared by the backends: progress, a common folder of all ranks, random states."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentloop.errors import UserError
from agentloop.process.atomic import atomic_folder, unfinished

_PROGRESS_FILE = "learner.json"
_UPDATES_TO_DOUBLE = 200


@dataclass(slots=True)
class Progress:
    """Counters in addition to the optimizer's state."""

    steps: int = 0
    """Number of calls to `step`."""
    updates: int = 0
    updates_skipped: int = 0
    """Number of updates whose loss or gradient was not finite."""
    loss_scale: float = 2.0**16
    """Loss scale for float16, without which small gradients would underflow to 0 (arXiv 1710.03740)."""
    updates_at_scale: int = 0
    frozen: str = ""
    """Digest of the weights in the folder with the frozen parameters, which are not saved; empty if all are saved."""

    def rescale(self, *, is_finite: bool) -> None:
        """Halve the scale after an update that is not finite; double it after 200 finite updates."""
        self.updates_at_scale = self.updates_at_scale + 1 if is_finite else 0
        if not is_finite:
            self.loss_scale = max(self.loss_scale / 2, 1.0)
        elif self.updates_at_scale == _UPDATES_TO_DOUBLE:
            self.loss_scale, self.updates_at_scale = self.loss_scale * 2, 0

    def write(self, folder: Path) -> None:
        (folder / _PROGRESS_FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Progress:
        """Read the progress in a saved state. Raises `UserError` if the folder does not have one."""
        try:
            return cls(**json.loads((folder / _PROGRESS_FILE).read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder} does not contain the state of a learner: {error}. If it is damaged, remove {folder.parent} "
                "to resume from the checkpoint before it."
            ) from error


_groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def group_for_saving() -> dist.ProcessGroup:
    """Return a group of all ranks, separate from the training group, because two threads must not share a group."""
    world = dist.group.WORLD
    assert world is not None
    if world not in _groups:
        group = dist.new_group(backend="gloo")
        assert group is not None
        _groups[world] = group
    return _groups[world]


class Together:
    """`atomic_folder` for all ranks: the first rank creates and publishes the folder, the others wait for it."""

    def __init__(self, folder: Path, group: dist.ProcessGroup | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._group = group
        self._stack = ExitStack()

    def __enter__(self) -> tuple[Path, bool]:
        is_first = dist.get_rank() == 0
        if is_first:
            self._stack.enter_context(atomic_folder(self._folder))
        _barrier(self._group)
        return unfinished(self._folder), is_first

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            _barrier(self._group)
        self._stack.__exit__(*error)
        if error[0] is None:
            _barrier(self._group)


def _barrier(group: dist.ProcessGroup | None) -> None:
    if dist.get_world_size() > 1:
        dist.barrier(group)


def random_state() -> dict[str, torch.Tensor]:
    """Return the states of this rank's random generators."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Restore the states that `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
