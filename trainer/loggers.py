"""Where metrics go beside metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from agentloop.errors import UserError
from agentloop.trainer.run_config import RunConfig


class Logger(Protocol):
    """Takes the metrics of each step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoardLogger:
    """Event files in `folder`; those of steps after `done`, which a killed run left, are hidden."""

    def __init__(self, folder: Path, *, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "run.loggers has tensorboard, which is not installed: pip install 'agentloop[train]', or set "
                "run.loggers=[]."
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """A Weights & Biases run that a resume goes on with; its project and name come from wandb's own settings."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "run.loggers has wandb, which is not installed: pip install 'agentloop[wandb]', or take it out of "
                "run.loggers."
            ) from error
        id_file = root / "wandb_id"
        run_id = id_file.read_text().strip() if id_file.is_file() else wandb.util.generate_id()
        id_file.write_text(run_id)
        self._run = wandb.init(id=run_id, resume="allow", dir=str(root), name=root.name, config=config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def make_loggers(config: RunConfig, root: Path, *, done: int) -> list[Logger]:
    """Those of `run.loggers`; `done` steps were logged before. Raises `UserError` where one is not installed."""
    loggers: list[Logger] = []
    for name in config.run.loggers:
        if name == "tensorboard":
            loggers.append(TensorBoardLogger(root / "tensorboard", done=done))
        else:
            loggers.append(WandbLogger(root, config.model_dump(mode="json")))
    return loggers
