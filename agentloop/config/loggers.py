"""`LoggerConfig`: where metrics go beside metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from agentloop.errors import UserError, nearest
from agentloop.registry.options import Config, ConfigOptions, ConfigPath

BUILT_IN: Mapping[str, str] = {
    "mlflow": "agentloop.trainer.run.loggers.mlflow:MlflowLogger",
    "tensorboard": "agentloop.trainer.run.loggers.tensorboard:TensorBoardLogger",
    "wandb": "agentloop.trainer.run.loggers.wandb:WandbLogger",
}
"""Name -> where it is; imported when a run asks for it."""


def known_logger(name: str) -> str:
    """`name` where it is built in or the place of one's own. Raises `UserError`."""
    if ":" not in name and name not in BUILT_IN:
        raise UserError(
            f"There is no logger {name!r}.{nearest(name, BUILT_IN)} Built in: {', '.join(BUILT_IN)}; one of your own "
            "is named 'file.py:Class' or 'package.module:Class'."
        )
    return name


class LoggerConfig(Config):
    name: Annotated[ConfigPath, AfterValidator(known_logger)]
    """`tensorboard`, `wandb`, `mlflow`, or one of your own, 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, such as {project: my-agents} of wandb."""
