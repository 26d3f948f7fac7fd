"""Saving and restoring an FSDP learner: exact state for a resume, Hugging Face folders for everyone else."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.tensor import DTensor

from agentloop.errors import UserError
from agentloop.trainer.backends.folders import appearing, copy_model_extras
from agentloop.trainer.backends.policy import Policy

_PROGRESS = "learner.json"


@dataclass(slots=True)
class Progress:
    """Counters that the optimizer's state does not have."""

    steps: int = 0
    """Calls of `step`."""
    updates: int = 0
    updates_skipped: int = 0
    """Their loss or gradient was not finite."""


class LearnerState:
    """What a resume needs, as it was when this was made: training may go on while it is written."""

    def __init__(self, policy: Policy, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Copies to the memory of the host: parameters and optimizer of this rank's shards."""
        model_state, optimizer_state = get_state_dict(policy, optimizer)
        # A copy of plain tensors: pinned and shared memory would stay allocated between checkpoints.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._state = DefaultStager(options).stage({"model": model_state, "optimizer": optimizer_state})
        self._random_state = _random_state()
        self._progress = json.dumps(asdict(progress))
        self._group = _group_for_saving()

    def write(self, folder: Path) -> None:
        """Into `folder`, whole or not at all. Every rank calls it, in any thread."""
        with _together(folder, self._group) as (target, is_first):
            save_checkpoint(self._state, checkpoint_id=target, process_group=self._group)
            torch.save(self._random_state, target / f"random-{_rank()}.pt")
            if is_first:
                (target / _PROGRESS).write_text(self._progress)


_groups: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def _group_for_saving() -> dist.ProcessGroup:
    """All ranks, apart from the group that training uses: two threads must not share one."""
    world = dist.group.WORLD
    assert world is not None
    if world not in _groups:
        group = dist.new_group(backend="gloo")
        assert group is not None
        _groups[world] = group
    return _groups[world]


def load(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore what `save` wrote. Raises `UserError` where it is not there or of another model."""
    try:
        progress = Progress(**json.loads((folder / _PROGRESS).read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder} does not hold the state of a learner: {error}. Give a folder that save wrote."
        ) from error
    model_state, optimizer_state = get_state_dict(policy, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    try:
        load_checkpoint(state, checkpoint_id=folder)
    except (CheckpointException, RuntimeError, ValueError, KeyError, OSError) as error:
        raise UserError(
            f"The state in {folder} does not fit the model that is being trained: {str(error).strip()} "
            "Resume with the learner.model that the run was started with."
        ) from error
    set_state_dict(policy, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    random_state = folder / f"random-{_rank()}.pt"
    if random_state.is_file():
        _set_random_state(torch.load(random_state, weights_only=True))
    return progress


def save_hf(folder: Path, policy: Policy, source: Path) -> None:
    """Weights, config, and copies of the tokenizer and chat templates of `source`."""
    full: dict[str, torch.Tensor] = {}
    for name, value in policy.model.state_dict().items():
        # Every rank takes part in gathering; only the first keeps what was gathered, off the device.
        tensor = value.full_tensor() if isinstance(value, DTensor) else value
        if _rank() == 0:
            full[name] = tensor.detach().cpu()
    with _together(folder) as (target, is_first):
        if is_first:
            policy.model.save_pretrained(target, state_dict=full)  # type: ignore[operator]
            copy_model_extras(source, target)


class _together:
    """`appearing` for all ranks: the first one makes the folder and lets it appear, the others wait for it."""

    def __init__(self, folder: Path, group: dist.ProcessGroup | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._group = group
        self._stack = ExitStack()

    def __enter__(self) -> tuple[Path, bool]:
        is_first = _rank() == 0
        if is_first:
            self._stack.enter_context(appearing(self._folder))
        _barrier(self._group)
        return self._folder.with_name(self._folder.name + ".tmp"), is_first

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            _barrier(self._group)
        self._stack.__exit__(*error)
        if error[0] is None:
            _barrier(self._group)


def _rank() -> int:
    return dist.get_rank()


def _barrier(group: dist.ProcessGroup | None) -> None:
    if dist.get_world_size() > 1:
        dist.barrier(group)


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
