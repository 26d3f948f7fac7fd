"""Log metrics to event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentloop.trainer.run.loggers import not_installed


class TensorBoardLogger:
    """Writes event files to `folder`/tensorboard, and hides events after step `done` from a killed run."""

    def __init__(self, folder: Path, config: Mapping[str, Any], *, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise not_installed("tensorboard", "train") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
