"""Log metrics to Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.run.loggers import not_installed
from agentloop.trainer.run.loggers.tracked_run import RememberedRun


class WandbLogger:
    """Logs to a wandb run that is named after the run folder. A resumed run continues the same wandb run.

    Options are arguments of `wandb.init`: project, entity, group, tags, mode and so on. Without them wandb's own
    settings apply (WANDB_PROJECT, WANDB_MODE=offline, ...).
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *, done: int, **options: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise not_installed("wandb", "wandb") from error
        self._remembered = RememberedRun(folder / "wandb_run.json")
        given = {"dir": str(folder), "name": folder.name, **options}
        run_id = self._remembered.id or secrets.token_hex(4)
        try:
            self._run = wandb.init(id=run_id, resume="allow", config=dict(config), **given)
        except TypeError as error:
            raise UserError(f"wandb does not accept these options of run.loggers: {error}. Remove them.") from error
        except wandb.Error as error:
            raise UserError(
                f"wandb cannot start a run: {error}. Log in with `wandb login`, set WANDB_MODE=offline, or remove "
                "wandb from run.loggers."
            ) from error
        self._remembered.begin(run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._remembered.is_new(step):
            self._run.log(dict(metrics), step=step)
            self._remembered.mark_sent(step)

    def close(self) -> None:
        self._run.finish()
