"""Convert the length of a run, its folder, checkpoints and loggers."""

from __future__ import annotations

from pathlib import Path

from agentloop.config.records import LOGGERS
from agentloop.trainer.from_verl.asynchronous import kind
from agentloop.trainer.from_verl.config import Settings, VerlConfig, positive

_SHOWN = {"console", "file"}
"""Loggers of verl whose output every run of agentloop has."""
_PROJECTS = {"wandb": "project", "mlflow": "experiment"}
"""Logger -> option that corresponds to verl's project."""


def run(verl: VerlConfig) -> Settings:
    """Convert folder, length, checkpoints and loggers."""
    loggers = verl.get("trainer.logger", default=[])
    loggers = [loggers] if isinstance(loggers, str) else loggers
    if others := [name for name in loggers if name not in {*LOGGERS, *_SHOWN}]:
        verl.note(
            f"trainer.logger: {', '.join(others)} is not known here (known: {', '.join(sorted(LOGGERS))}). Your own "
            "class can be a logger too (docs/guides/view.md)."
        )
    return {
        "run.folder": _folder(verl),
        **_length(verl),
        "run.save_every": positive(verl.number("trainer.save_freq")),
        "run.keep_last": positive(verl.number("trainer.max_actor_ckpt_to_keep")),
        "run.seed": verl.number("data.seed"),
        "run.loggers": [_logger(verl, name) for name in loggers if name in LOGGERS] or None,
    }


def _logger(verl: VerlConfig, name: str) -> str | Settings:
    """Return a logger, with the project if the user set one."""
    if name not in _PROJECTS or not verl.is_set("trainer.project_name"):
        return name
    return {"name": name, "options": {_PROJECTS[name]: verl.get("trainer.project_name")}}


def _folder(verl: VerlConfig) -> str | None:
    """Return the folder of the run; verl resumes a run of the same project and name."""
    mode = verl.get("trainer.resume_mode", default="auto")
    project, name = verl.get("trainer.project_name"), verl.get("trainer.experiment_name")
    path = verl.get("trainer.resume_from_path")
    if mode == "resume_path" and path:
        verl.note("trainer.resume_from_path: agentloop does not read checkpoints of verl. Export one and set model.")
    if mode == "disable" or not (verl.is_set("trainer.project_name") or verl.is_set("trainer.experiment_name")):
        return None
    return str(Path("runs", *(str(part).strip().replace("/", "-") for part in (project, name) if part)))


def _length(verl: VerlConfig) -> Settings:
    """Return the steps if they are set, or else the epochs, as in verl."""
    steps, epochs = (
        positive(verl.number("trainer.total_training_steps")),
        verl.number("trainer.total_epochs", default=30),
    )
    if kind(verl) == "fully_async" and positive(verl.number("rollout.total_rollout_steps")):
        return {}  # its length is given in tasks
    if steps and verl.is_set("trainer.total_epochs"):
        verl.note(
            f"trainer.total_epochs={epochs}: verl also ends there if that is before {steps} steps; agentloop does not."
        )
    return {"run.steps": int(steps)} if steps else {"run.epochs": float(epochs)}
