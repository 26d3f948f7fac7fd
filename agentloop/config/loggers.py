"""`LoggerConfig`: a logger that metrics go to, beside metrics.jsonl."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from agentloop.registry.options import Config, ConfigOptions, ConfigPath
from agentloop.registry.registry import Registry

LOGGERS: Registry[Any] = Registry(
    "logger",
    "run.loggers",
    {
        "mlflow": "agentloop.trainer.run.loggers.mlflow:MlflowLogger",
        "tensorboard": "agentloop.trainer.run.loggers.tensorboard:TensorBoardLogger",
        "wandb": "agentloop.trainer.run.loggers.wandb:WandbLogger",
    },
)
"""Classes, each imported when a run uses it."""


class LoggerConfig(Config):
    """A logger and its options."""

    name: Annotated[ConfigPath, AfterValidator(LOGGERS.check)]
    """`tensorboard`, `wandb`, `mlflow`, or one of your own, 'file.py:Class' / 'package.module:Class'."""
    options: ConfigOptions = Field(default_factory=dict)
    """Arguments of its constructor, such as {project: my-agents} for wandb."""
