"""`rehearse`: checks everything that a run needs; reports given settings, derived settings and checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentloop.config.resolved import Facts, resolve, with_steps
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup, RunTasks, make_engine
from agentloop.trainer.cluster.session import check_address
from agentloop.trainer.rehearsal.episode import play
from agentloop.trainer.rehearsal.machine import check_machine
from agentloop.trainer.rehearsal.prompts import measure
from agentloop.trainer.run.checks import check_trainable, check_warmup
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.model_folder import check_second_models, check_weights, find_model, teacher_folder
from agentloop.trainer.run.resume import describe_resumption
from agentloop.trainer.sizing.batch_sizes import BatchSizes


@dataclass(slots=True, frozen=True)
class Rehearsal:
    """The outcome of a dry run that found no mistake."""

    config: RunConfig
    """The config with the number of steps."""
    derived: dict[str, str]
    """Settings derived from the config: label -> text."""
    checked: dict[str, str]
    """Checks and their results: label -> text."""
    warnings: list[str]
    """Possible mistakes, and things that could not be checked."""


def rehearse(config: RunConfig, folder: Path, placement: dict[str, str]) -> Rehearsal:
    """Check a run. Raises `UserError` for the first mistake; `placement` is added to the derived settings."""
    check_trainable(config)
    RunFolder(folder).check()
    checked: dict[str, str] = {}
    warnings: list[str] = []
    model = find_model(config)
    if model.folder is not None:
        check_weights(model.folder)
        check_second_models(config, model.folder)
        teacher_folder(config, model.folder, weights=False)
    if config.placement.gpu is not None:
        warnings.append(
            "Not checked: packages and GPUs, because placement.gpu is set, so the run is for another machine."
        )
    elif model.folder is None:
        warnings.append("Not checked: packages and GPUs, because the model is not on this machine.")
    else:
        checked["GPUs"] = check_machine(config)
    if (address := config.workers.address) is not None and config.placement.gpu is None:
        check_address(address)
        if address == "auto":
            warnings.append("Not checked: the Ray cluster that workers.address=auto looks for on this machine.")
        else:
            checked["workers"] = f"{address} responds"
    longest = config.max_tokens(getattr(model.hf_config.get_text_config(), "max_position_embeddings", None))
    if model.note:
        warnings.append(f"Without the model: {model.note}.")
    tasks: RunTasks | RolloutSetup
    if model.folder is None:
        tasks = RunTasks.load(config)
        warnings.append(
            "Not checked: chat template, prompt lengths, an episode, and the columns that the reward reads. They need "
            "the tokenizer of the model."
        )
    else:
        tasks = setup = RolloutSetup.load(config, model.folder)
        checked["chat template"] = "found"
        if config.placement.gpu is None:
            make_engine(resolve(config, Facts(model=model.folder)))  # which checks the options of the engine
        if setup.needs_prompt:
            checked["prompts"], too_long = measure(setup, longest=longest)
            warnings += too_long
        played = play(setup, model.folder, longest=longest)
        checked["chat template"] = "shows the tools" if played.has_tools else "found; the run has no tools"
        checked |= played.lines
        warnings += played.warnings
    config = with_steps(config, len(tasks.train))
    check_warmup(config)
    return Rehearsal(config, _derived(config, tasks, RunFolder(folder), longest) | placement, checked, warnings)


def _derived(config: RunConfig, tasks: RunTasks | RolloutSetup, folder: RunFolder, longest: int) -> dict[str, str]:
    run, num_train, num_eval = config.run, len(tasks.train), len(tasks.eval)
    epochs = run.steps * config.algorithm.groups_per_step / num_train
    return {
        "folder": str(folder.root),
        **describe_resumption(config, folder),
        "tasks": f"{num_train} to train on, {num_eval} held out",
        "tools": ", ".join(tool.name for tool in config.env.tools) or "none",
        "longest episode": f"{longest} tokens",
        "steps": f"{run.steps}, {epochs:.2f} epochs",
        **BatchSizes.of(config).lines(),
        "concurrency": f"{config.engine.max_concurrency} episodes on each of {config.workers.count} workers",
        "checkpoints": f"every {run.save_every} steps, keeping the last {run.keep_last}",
        "evaluation": f"every {config.eval.every} steps, {num_eval * config.eval.samples} episodes"
        if config.eval.every
        else "never",
    }


def what_was_set(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a config that differ from the defaults, as plain data."""
    least = RunConfig.model_validate({"model": "", "data": {"train": ""}, "env": {}}).model_dump(mode="json")
    return _differing(config.model_dump(mode="json"), least)


def _differing(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict) and default:
            found |= {key: inner} if (inner := _differing(value, default)) else {}
        elif value != default:
            found[key] = value
    return found
