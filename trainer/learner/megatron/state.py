"""Save and restore a Megatron learner: the state of each rank for a resume, and Hugging Face folders."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.process.full_disk import naming_full_disk
from agentloop.trainer.learner.checkpoint_files import (
    copy_model_extras,
    saved_dtype,
    write_checkpoint,
    write_model_config,
)
from agentloop.trainer.learner.megatron.ranks import Ranks
from agentloop.trainer.learner.megatron.training import Training
from agentloop.trainer.learner.progress import (
    Progress,
    Together,
    group_for_saving,
    random_state,
    set_random_state,
)

_LAYOUT = "layout.json"


class MegatronState:
    """A copy of all state that a resume needs, so that training can continue while it is written."""

    def __init__(self, model: nn.Module, training: Training, progress: Progress, ranks: Ranks) -> None:
        """Copy this rank's state to host memory."""
        self._state = _on_host(_own_state(model, training))
        self._state["random"] = random_state()
        self._progress = replace(progress)
        self._layout = json.dumps(_layout(ranks))
        self._group = group_for_saving()

    def write(self, folder: Path) -> None:
        """Write `folder` atomically. Every rank must call this, in any thread."""
        with naming_full_disk(folder), Together(folder, self._group) as (target, is_first):
            torch.save(self._state, target / _file())
            if is_first:
                self._progress.write(target)
                (target / _LAYOUT).write_text(self._layout)


def load(folder: Path, model: nn.Module, training: Training, ranks: Ranks) -> Progress:
    """Restore a saved state. Raises `UserError` if the folder has none, or one of another model or layout."""
    progress = Progress.read(folder)
    try:
        layout = json.loads((folder / _LAYOUT).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} does not contain the state of a megatron learner: {error}. Use a folder that save wrote with "
            "learner.backend=megatron."
        ) from error
    if layout != _layout(ranks):
        raise UserError(
            f"The state in {folder} has the layout {layout}, but these ranks have {_layout(ranks)}. Resume with the "
            "layout that the run was started with; save_hf writes weights that any layout can start from."
        )
    saved = torch.load(folder / _file(), map_location="cpu", weights_only=True)
    _restore(saved, model, training, folder)
    set_random_state(saved["random"])
    return progress


def save_hf(folder: Path, weights: Iterable[tuple[str, Tensor]], source: Path, config: LearnerConfig) -> None:
    """Write weights, config, and copies of the tokenizer and chat templates of `source`.

    A `chat_template` of `config` replaces those of `source`.
    """
    with Together(folder) as (target, is_first):
        if is_first:
            dtype = saved_dtype(source, config.save_dtype)
            write_checkpoint(target, ((name, weight.to(dtype)) for name, weight in weights))
            write_model_config(source, target, dtype)
            copy_model_extras(source, target, config.chat_template)
        else:
            deque(weights, maxlen=0)  # every rank must take part in gathering


def _own_state(model: nn.Module, training: Training) -> dict[str, Any]:
    return {
        "model": {name: parameter.detach() for name, parameter in model.named_parameters()},
        "main": [[p.detach() for group in inner.param_groups for p in group["params"]] for inner in training.inner],
        "optimizer": [inner.state_dict()["state"] for inner in training.inner],
    }


def _restore(saved: dict[str, Any], model: nn.Module, training: Training, folder: Path) -> None:
    own = _own_state(model, training)
    fits = saved["model"].keys() == own["model"].keys() and all(
        saved["model"][name].shape == value.shape for name, value in own["model"].items()
    )
    if not fits:
        raise UserError(
            f"The state in {folder} does not fit the model. Set model to the one with which the run was started."
        )
    for name, value in own["model"].items():
        value.copy_(saved["model"][name])
    for kept, values in zip(saved["main"], own["main"], strict=True):
        for source, target in zip(kept, values, strict=True):
            target.copy_(source)
    for inner, values in zip(training.inner, saved["optimizer"], strict=True):
        inner.load_state_dict({"state": values, "param_groups": inner.state_dict()["param_groups"]})


def _on_host(value: Any) -> Any:
    """Copy the tensors in nested lists and dictionaries to host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    return [_on_host(item) for item in value] if isinstance(value, list) else value


def _layout(ranks: Ranks) -> dict[str, int]:
    names = ("tensor", "pipeline", "pieces", "context", "expert", "data")
    return {name: getattr(ranks, name) for name in names}


def _file() -> str:
    return f"rank-{dist.get_rank():05}.pt"
