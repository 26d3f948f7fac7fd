"""Saving and restoring an FSDP learner: exact state for a resume, Hugging Face folders for everyone else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.tensor import DTensor

from agentloop.config.learner import LoraConfig
from agentloop.errors import UserError
from agentloop.process.atomic_folders import copy_model_extras
from agentloop.trainer.learner.progress import (
    PROGRESS_FILE,
    Progress,
    Together,
    group_for_saving,
    random_state,
    set_random_state,
)
from agentloop.trainer.model import lora
from agentloop.trainer.model.packed_lm import PackedCausalLM

_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""What is frozen is in the folder of the model."""


class LearnerState:
    """What a resume needs, as it was when this was made: training may go on while it is written."""

    def __init__(self, policy: PackedCausalLM, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Copies to the memory of the host: parameters and optimizer of this rank's shards."""
        _give_all_a_state(optimizer)
        model_state, optimizer_state = get_state_dict(policy, optimizer, options=_TRAINED)
        # A copy of plain tensors: pinned and shared memory would stay allocated between checkpoints.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._state = DefaultStager(options).stage({"model": model_state, "optimizer": optimizer_state})
        self._random_state = random_state()
        self._progress = json.dumps(asdict(progress))
        self._group = group_for_saving()

    def write(self, folder: Path) -> None:
        """Into `folder`, whole or not at all. Every rank calls it, in any thread."""
        with Together(folder, self._group) as (target, is_first):
            save_checkpoint(self._state, checkpoint_id=target, process_group=self._group)
            torch.save(self._random_state, target / f"random-{dist.get_rank()}.pt")
            if is_first:
                (target / PROGRESS_FILE).write_text(self._progress)


def load(folder: Path, policy: PackedCausalLM, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore what `save` wrote. Raises `UserError` where it is not there or of another model."""
    try:
        progress = Progress(**json.loads((folder / PROGRESS_FILE).read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder} does not hold the state of a learner: {error}. Give a folder that save wrote."
        ) from error
    _give_all_a_state(optimizer)
    model_state, optimizer_state = get_state_dict(policy, optimizer, options=_TRAINED)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    try:
        load_checkpoint(state, checkpoint_id=folder)
    except (CheckpointException, RuntimeError, ValueError, KeyError, OSError) as error:
        raise UserError(
            f"The state in {folder} does not fit the model that is being trained: {str(error).strip()} "
            "Resume with the learner.model that the run was started with."
        ) from error
    set_state_dict(
        policy, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=_TRAINED
    )
    file = folder / f"random-{dist.get_rank()}.pt"
    if file.is_file():
        set_random_state(torch.load(file, weights_only=True))
    return progress


def _give_all_a_state(optimizer: torch.optim.Optimizer) -> None:
    """That of the first step to parameters that had none: no update was made yet, or none of them had a gradient, such
    as a vision tower without pictures. torch would make it too, where there is none at all, but with that step done.
    """
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    new = [parameter for parameter in every if parameter not in optimizer.state]
    if not new:
        return
    gradients = [parameter.grad for parameter in every]  # of an update that has begun
    for parameter in every:
        parameter.grad = None
    for parameter in new:
        parameter.grad = torch.zeros_like(parameter)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter in new:
        optimizer.state[parameter]["step"].zero_()
    for parameter, gradient in zip(every, gradients, strict=True):
        parameter.grad = gradient


def save_hf(folder: Path, policy: PackedCausalLM, source: Path, adapters: LoraConfig | None) -> None:
    """Weights, config, and copies of the tokenizer and chat templates of `source`; adapters once more, by themselves,
    in a folder `adapter`."""
    state = policy.model.state_dict()
    full = _gathered(lora.merged(policy.model, state.items()))
    trained = _gathered((name, value) for name, value in state.items() if lora.is_adapter(name))
    with Together(folder) as (target, is_first):
        if is_first:
            policy.model.save_pretrained(target, state_dict=full)  # type: ignore[operator]
            copy_model_extras(source, target)
            if adapters is not None:
                lora.save_adapters(target / "adapter", trained, adapters, source)


def _gathered(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Every rank takes part in gathering; only the first keeps what was gathered, off the device."""
    full: dict[str, torch.Tensor] = {}
    for name, value in weights:
        tensor = value.full_tensor() if isinstance(value, DTensor) else value
        if dist.get_rank() == 0:
            full[name] = tensor.detach().cpu()
    return full
