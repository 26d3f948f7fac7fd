"""Find the trained model of a run, and export checkpoints as Hugging Face folders."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from agentloop.config.fine_tuning import load_training_config
from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checkpoints import checkpoint_steps
from agentloop.trainer.run.folder import RunFolder, check_writable, step_name
from agentloop.trainer.run.model_folder import locate_model


def is_run(path: Path) -> bool:
    """Return whether a folder is a run folder."""
    return (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()


def trained_model(root: Path, step: int | None = None) -> tuple[Path, str]:
    """Return the folder of a run's model and a description of it.

    Without `step` this is the final model of the run, or else the model of its newest checkpoint, which is exported to
    the run folder once. Raises `UserError` if the run has no such checkpoint.
    """
    run = RunFolder(root)
    if step is None and run.model.is_dir():
        return run.model, f"the trained model of {root}"
    chosen = _chosen(run, step)
    folder = run.exported / step_name(chosen)
    if not folder.is_dir():
        export(root, folder, step=chosen)
    return folder, f"the model of {root} after step {chosen}"


def export(root: Path, output: Path, *, step: int | None = None, dtype: str | None = None) -> int:
    """Write the model of a checkpoint as a Hugging Face folder `output`, and return its step.

    `step` defaults to the newest checkpoint. `dtype` is float32, bfloat16, float16 or auto; the default is the
    learner.save_dtype of the run.

    Raises:
        UserError: There is no such checkpoint, or `output` exists or cannot be created.
    """
    if os.path.lexists(output):
        raise UserError(f"{output} exists. Export to a new folder.")
    try:
        check_writable(output)
    except OSError as error:
        raise UserError(f"{output} cannot be written to: {error.strerror}. Export to another folder.") from error
    run = RunFolder(root)
    if not run.config_file.is_file():
        raise UserError(
            f"{root} is not the folder of a run, because it has no {run.config_file.name}. Pass the folder that "
            "`agentloop train` or `agentloop sft` printed at its start."
        )
    chosen = _chosen(run, step)
    config = load_training_config(run.config_file)
    state = run.checkpoints / step_name(chosen) / "learner"
    if (state / "policy").is_dir():  # next to a critic or a process reward model
        state = state / "policy"
    changes: dict[str, Any] = {"model": str(locate_model(config.model)), "kl_coef": 0.0}
    changes |= {"reference": None, "reference_every": None, "chat_template": config.rendering.template_text}
    changes["lr_schedule"] = "constant"  # nothing is trained
    if dtype is not None:
        changes["save_dtype"] = dtype
    try:
        _write(config.learner, changes, state, output)
    except UserError as error:
        if state.is_dir():
            raise
        raise UserError(
            f"The run in {root} removed the checkpoint of step {chosen} while it was exported. Export again, or resume "
            "the run with a larger run.keep_last."
        ) from error
    return chosen


def _write(config: LearnerConfig, changes: dict[str, Any], state: Path, output: Path) -> None:
    from agentloop.trainer.run.learners import create

    if config.backend == "megatron":  # the layout of ranks must be the one that saved it
        with closing(create(config.replace(**changes))) as ranks:
            ranks.load(state)
            ranks.save_hf(output)
        return
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    alone = {
        "ranks": 1,
        "nodes": None,
        "sequence_parallel": 1,
        "skip_checks": ["packed_equals_alone"],
    }
    with closing(FsdpLearner(config.replace(**changes, **alone))) as learner:
        learner.load_weights(state)
        learner.save_hf(output)


def _chosen(run: RunFolder, step: int | None) -> int:
    steps = checkpoint_steps(run.checkpoints)
    if not steps:
        raise UserError(
            f"{run.root} has no checkpoint and no trained model yet. Wait until a running run saves one; if the run "
            "ended before, start it again with a smaller run.save_every."
        )
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(
            f"{run.root} has no checkpoint of step {step}. It has checkpoints of steps {', '.join(map(str, steps))}; "
            "run.keep_last keeps more of them."
        )
    return step
