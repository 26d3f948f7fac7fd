"""Save and restore an FSDP learner: its exact state for a resume, and Hugging Face folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.tensor import DTensor
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError, described
from agentloop.process.full_disk import naming_full_disk
from agentloop.trainer.learner.checkpoint_files import copy_model_extras, saved_dtype, write_model_config
from agentloop.trainer.learner.fsdp.restricted_reading import RestrictedPlanner, RestrictedReader
from agentloop.trainer.learner.progress import (
    Progress,
    Together,
    group_for_saving,
    random_state,
    set_random_state,
)
from agentloop.trainer.model import lora, peft_format
from agentloop.trainer.model.packed_lm import PackedCausalLM

_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""Frozen parameters are not saved, because they are in the folder of the model."""
_REFERENCE = "reference"
"""Key of a reference model that changes in training."""


class LearnerState:
    """A copy of all state that a resume needs, so that training can continue while it is written."""

    def __init__(
        self,
        policy: PackedCausalLM,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        reference: PackedCausalLM | None = None,
    ) -> None:
        """Copy the parameters and optimizer state of this rank's shards to host memory.

        `reference` is a reference model that changes in training.
        """
        _initialize_state(optimizer)
        model_state, optimizer_state = get_state_dict(policy, optimizer, options=_TRAINED)
        # Copy to plain tensors: pinned and shared memory would stay allocated between checkpoints.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        state = {"model": model_state, "optimizer": optimizer_state}
        if reference is not None:
            state[_REFERENCE] = get_model_state_dict(reference)
        self._state = DefaultStager(options).stage(state)
        self._random_state = random_state()
        self._progress = replace(progress)
        self._group = group_for_saving()

    def write(self, folder: Path) -> None:
        """Write `folder` atomically. Every rank must call this, in any thread."""
        with naming_full_disk(folder), Together(folder, self._group) as (target, is_first):
            save_checkpoint(self._state, checkpoint_id=target, process_group=self._group)
            torch.save(self._random_state, target / f"random-{dist.get_rank()}.pt")
            if is_first:
                self._progress.write(target)


def load(
    folder: Path, policy: PackedCausalLM, optimizer: torch.optim.Optimizer, reference: PackedCausalLM | None = None
) -> Progress:
    """Restore a saved state. Raises `UserError` if the folder has none, or the state of another model.

    `reference` is a reference model that changes in training. It is left as it is if the state has none, because it
    had not changed yet when that was saved.
    """
    progress = Progress.read(folder)
    _initialize_state(optimizer)
    model_state, optimizer_state = get_state_dict(policy, optimizer, options=_TRAINED)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    if reference is not None and _has_reference(folder):
        state[_REFERENCE] = get_model_state_dict(reference)
    _read(state, folder)
    set_state_dict(
        policy, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=_TRAINED
    )
    if reference is not None and _REFERENCE in state:
        set_model_state_dict(reference, state[_REFERENCE])
    file = folder / f"random-{dist.get_rank()}.pt"
    if file.is_file():
        set_random_state(torch.load(file, weights_only=True))
    return progress


def _has_reference(folder: Path) -> bool:
    saved = RestrictedReader(folder).read_metadata().state_dict_metadata
    return any(name.startswith(f"{_REFERENCE}.") for name in saved)


def _initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Initialise missing optimizer state of parameters as before their first update.

    It is missing before the first update, and for parameters without gradients, such as a vision tower without images.
    torch itself initialises the state only if all of it is missing, and counts that as a step.
    """
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    new = [parameter for parameter in every if parameter not in optimizer.state]
    if not new:
        return
    gradients = [parameter.grad for parameter in every]  # an update may be in progress
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


def load_weights(folder: Path, policy: PackedCausalLM) -> None:
    """Restore only the weights of a state, saved by any number of ranks. Raises `UserError` as `load` does."""
    Progress.read(folder)
    state: dict[str, Any] = {"model": get_model_state_dict(policy, options=_TRAINED)}
    _read(state, folder)
    set_model_state_dict(policy, state["model"], options=_TRAINED)


def _read(state: dict[str, Any], folder: Path) -> None:
    try:
        load_checkpoint(state, storage_reader=RestrictedReader(folder), planner=RestrictedPlanner())
    except (CheckpointException, RuntimeError, ValueError, KeyError, OSError) as error:
        causes = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
        for cause in causes:
            if isinstance(cause, UserError):
                raise cause from error
        raise UserError(
            f"The state in {folder} does not fit the model, or is damaged ({described(causes[0])}). Set model to the "
            f"one with which the run was started, or remove {folder.parent} to resume from the checkpoint before it."
        ) from error


def save_hf(folder: Path, policy: PackedCausalLM, source: Path, config: LearnerConfig) -> None:
    """Write weights in `save_dtype`, tied ones once, config, and copies of the tokenizer and templates of `source`.

    A `chat_template` of `config` replaces those of `source`. Adapters are merged into the weights, and also written
    separately to a folder `adapter`.
    """
    state = _without_repetitions(policy.model)
    dtype = saved_dtype(source, config.save_dtype)
    full = _gathered((name, value.to(dtype)) for name, value in lora.merged(policy.model, state.items()))
    # peft has an adapter for each layer, also for layers with a common one.
    trained = _gathered((name, value) for name, value in policy.model.state_dict().items() if lora.is_adapter(name))
    with Together(folder) as (target, is_first):
        if is_first:
            # transformers refuses to write some files that it reads, so that of the source is copied.
            model: Any = policy.model
            model.generation_config = GenerationConfig()
            model.save_pretrained(target, state_dict=full)
            (target / GENERATION_CONFIG_NAME).unlink(missing_ok=True)
            write_model_config(source, target, dtype)
            copy_model_extras(source, target, config.chat_template)
            if config.lora is not None:
                peft_format.save_adapters(target / "adapter", trained, config.lora, source)


def _without_repetitions(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state of a model with the first name only of each tied parameter."""
    first = {name for name, _ in model.named_parameters()}
    others = {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
    return {name: value for name, value in model.state_dict().items() if name not in others}


def _gathered(weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Gather weights on all ranks; only the first keeps them, in host memory."""
    full: dict[str, torch.Tensor] = {}
    for name, value in weights:
        tensor = value.full_tensor() if isinstance(value, DTensor) else value
        if dist.get_rank() == 0:
            full[name] = tensor.detach().cpu()
    return full
