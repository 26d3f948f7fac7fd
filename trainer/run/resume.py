"""Resume a run exactly from its last checkpoint, or reject changed settings."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentloop.config.old_keys import updated, with_defaults
from agentloop.config.resolved import context_length
from agentloop.config.run import RunConfig, TrainingConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checkpoints import RunState, latest_checkpoint, remove_old, remove_unfinished
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.model_folder import locate_model
from agentloop.types.plain_data import flat

_log = logging.getLogger(__name__)

MAY_CHANGE = (
    "run",
    "engine",
    "workers",
    "placement",
    "profiler",
    "eval",
    "data.eval",
    "limits.max_env_seconds",
    "limits.max_reward_seconds",
    "learner.device",
    "learner.in_process",
    "learner.ranks",
    "learner.nodes",
    "learner.shard",
    "learner.token_budget",
    "learner.attention",
    "learner.checkpointing",
    "learner.compile_layers",
    "learner.gather_once",
    "learner.offload",
    "learner.refine_costs",
    "learner.sequence_parallel",
    "learner.share_prefixes",
)
"""Keys that do not affect what the model learns, each with all keys below it.

Exceptions are `run.seed`, which also seeds the learner, and `run.steps` if the learning rate schedule ends with the
run.
"""


ADDRESSES = ("sandbox", "url", "host", "advertised", "api_key")
"""Suffixes of options with the address of a service, which may change at any depth."""


def open_run(config: TrainingConfig, root: Path) -> tuple[RunFolder, tuple[Path, RunState] | None]:
    """Create a run folder, or roll an existing one back to its last checkpoint.

    A run that failed before its first step may start again with other settings. Returns the folder, and the checkpoint
    as the learner's folder and the run's state; the checkpoint is None if the run starts from the beginning. Raises
    `UserError` if the folder has a run with other settings.
    """
    folder = RunFolder(root)
    folder.make()
    remove_unfinished(folder.checkpoints)
    checkpoint = checkpoint_to_resume(config, folder)
    remove_old(folder.checkpoints, keep_last=config.run.keep_last)  # a full disk has room again after lowering it
    folder.forget_after(checkpoint[1].step if checkpoint else -1)
    if checkpoint is None or checkpoint[1].step < config.run.steps:
        folder.forget_model()
    folder.write_config(config.model_dump(mode="json"))
    return folder, checkpoint


def checkpoint_to_resume(config: TrainingConfig, folder: RunFolder) -> tuple[Path, RunState] | None:
    """Return the checkpoint from which `open_run` resumes a run, without changing its folder, which may be missing.

    Raises `UserError` if the folder has a run with other settings.
    """
    checkpoint = latest_checkpoint(folder.checkpoints)
    has_trained = any(line["step"] > 0 for line in folder.read_metrics())  # step 0 is the evaluation before training
    before = folder.read_config() if has_trained else None
    started_with = checkpoint[1].config if checkpoint else before
    resolved = config.model_dump(mode="json")
    changed = [] if started_with is None else changed_keys(started_with, resolved, type(config))
    if started_with is not None and isinstance(config, RunConfig):
        changed += changed_length(started_with, config)
    if changed:
        reason = _reason_of_length(config, folder) if any(each.startswith("run.steps:") for each in changed) else ""
        raise UserError(
            f"The run in {folder.root} was started with other settings: {'; '.join(changed)}. Set them back to resume "
            f"it, or set run.folder to a new folder.{reason}"
        )
    return checkpoint


def _longest_episode(settings: Mapping[str, Any]) -> int:
    """Return the most tokens of an episode, apart from the model's context."""
    most: int = settings.get("limits.max_tokens") or settings["learner.token_budget"]
    engine = settings.get("engine.options.max_model_len")
    return min(most, engine) if isinstance(engine, int) and engine > 0 else most


def _reason_of_length(config: TrainingConfig, folder: RunFolder) -> str:
    """Return why a run may not become longer or shorter, and what to do instead."""
    return (
        f" The number of steps is fixed because learner.lr_schedule={config.learner.lr_schedule} ends with the run: "
        "every learning rate depends on it. To train a finished run further, start a new one in another folder with "
        f"{shlex.quote(f'model={folder.root}')}. A run that starts with learner.total_updates may change run.steps "
        "later."
    )


def describe_resumption(config: TrainingConfig, folder: RunFolder) -> dict[str, str]:
    """Return label -> text about the step after which a run in `folder` resumes; empty if it starts from the beginning.

    Raises `UserError` as `checkpoint_to_resume` does.
    """
    checkpoint = checkpoint_to_resume(config, folder)
    return {} if checkpoint is None else {"resumes": f"after step {checkpoint[1].step} of {config.run.steps}"}


def changed_keys(
    before: Mapping[str, Any], after: Mapping[str, Any], schema: type[TrainingConfig] = RunConfig
) -> list[str]:
    """Return 'key: old -> new' of each changed setting that affects what the model learns.

    Keys that are newer than the run count with their defaults in `before`. A setting that is refused today may change.
    """
    filled, stored, new = (
        updated(dict(flat(_without_addresses(each)))) for each in (with_defaults(schema, before), before, after)
    )
    # A value under an old name takes precedence over the default of the new name.
    names = dict(flat(before))
    old = filled | {key: value for key, value in stored.items() if key not in names}
    fixed = {"run.seed"}
    if new["learner.lr_schedule"] != "constant" and new["learner.total_updates"] is None:
        fixed.add("run.steps")
    changed = [
        key
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and (key in fixed or not _may_change(key))
    ]
    if changed and _is_refused(schema, with_defaults(schema, before)) and not _is_refused(schema, after):
        for key in [key for key in changed if _is_refused(schema, _with(after, key, old))]:
            _log.warning("%s was %s, which is refused today, and is now %s.", key, _shown(old, key), _shown(new, key))
            changed.remove(key)
    return [f"{key}: {_shown(old, key)} -> {_shown(new, key)}" for key in changed]


def changed_length(before: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return 'what: old -> new' if episodes may have other lengths because of keys that may change."""
    old, new = (
        _longest_episode(updated(dict(flat(with_defaults(RunConfig, each)))))
        for each in (before, config.model_dump(mode="json"))
    )
    if old != new and (context := context_length(locate_model(config.model, weights=False))) is not None:
        old, new = min(old, context), min(new, context)
    if old == new:
        return []
    return [
        f"the most tokens of an episode: {old} -> {new} (the smallest of engine.options.max_model_len and, if "
        "limits.max_tokens is not set, learner.token_budget)"
    ]


def _is_refused(schema: type[TrainingConfig], data: Mapping[str, Any]) -> bool:
    """Return whether no run can have a config, apart from keys that were renamed or removed."""
    nested: dict[str, Any] = {}
    for key, value in updated(dict(flat(data))).items():
        nested = _with(nested, key, {key: value})
    try:
        config = TypeAdapter(schema).validate_python(nested)
        if isinstance(config, RunConfig):
            check_trainable(config)
    except (ValidationError, UserError):
        return True
    return False


def _with(data: Mapping[str, Any], key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested data with the value of a dotted key in `values`, or without the key."""
    first, _, rest = key.partition(".")
    if rest:
        inside = data.get(first)
        return {
            **data,
            first: _with(
                inside if isinstance(inside, Mapping) else {}, rest, {rest: values[key]} if key in values else {}
            ),
        }
    kept = {name: item for name, item in data.items() if name != first}
    return kept | ({first: values[key]} if key in values else {})


def _without_addresses(value: Any) -> Any:
    """Return plain data without the addresses of services, which may move."""
    if isinstance(value, Mapping):
        kept = {name: item for name, item in value.items() if not name.endswith(ADDRESSES)}
        return {name: _without_addresses(item) for name, item in kept.items()}
    return [_without_addresses(item) for item in value] if isinstance(value, list) else value


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith((f"{free}.", f"{free}_")) for free in MAY_CHANGE)


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return repr(flat[key]) if key in flat else "not set"
