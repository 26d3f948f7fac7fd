"""Loggers of metrics in addition to metrics.jsonl: TensorBoard, Weights & Biases, MLflow, or a custom logger."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentloop.config.records import LOGGERS
from agentloop.errors import AgentLoopError, UserError, blaming
from agentloop.registry.options import check_call

if TYPE_CHECKING:
    from agentloop.config.records import LoggerConfig
    from agentloop.config.run import TrainingConfig

_log = logging.getLogger(__name__)


class Logger(Protocol):
    """Logs the metrics of each step.

    A run creates it by `logger(folder, config, done=..., **options)`. `folder` is the run folder and `config` the whole
    config as plain data. `done` is the last completed step of a resumed run, -1 for a new run; step 0 is the evaluation
    before step 1. A killed run may have logged steps after `done`, which the resumed run logs again.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _NamedLogger:
    """A logger whose own errors name it."""

    def __init__(self, name: str, logger: Logger) -> None:
        self._name = f"The logger {name!r} of run.loggers"
        self._logger = logger

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with blaming(f"{self._name} failed at step {step}"):
            self._logger.log(step, dict(metrics))  # the class may change its own copy

    def close(self) -> None:
        """Close the logger. A failure is only a warning: the run is over, and its own error must stay visible."""
        try:
            with blaming(f"{self._name} failed to close"):
                self._logger.close()
        except AgentLoopError as error:
            _log.warning("%s", error)


@contextmanager
def open_loggers(config: TrainingConfig, folder: Path, *, done: int) -> Iterator[list[Logger]]:
    """Yield the loggers of `run.loggers`, and close them at the end. `done` is the last completed step.

    Raises `UserError` if a logger is not installed, does not accept its options or cannot start.
    """
    with ExitStack() as stack:
        loggers: list[Logger] = []
        for each in config.run.loggers:
            logger = _NamedLogger(each.name, _make(each, folder, config.model_dump(mode="json"), done))
            stack.callback(logger.close)
            loggers.append(logger)
        yield loggers


def _make(spec: LoggerConfig, folder: Path, config: dict[str, Any], done: int) -> Logger:
    found = LOGGERS.get(spec.name)
    call = "logger(folder, config, done=..., **options)"
    check_call(found, spec.options, folder, config, of=f"logger {spec.name!r}", call=call, done=done)
    with blaming(f"The logger {spec.name!r} of run.loggers cannot start"):
        logger = found(folder, config, done=done, **spec.options)
    if missing := [name for name in ("log", "close") if not callable(getattr(logger, name, None))]:
        raise UserError(
            f"The logger {spec.name!r} of run.loggers has no method {' and no method '.join(missing)}. A logger needs "
            "log(step, metrics) and close()."
        )
    if late := [name for name in ("log", "close") if iscoroutinefunction(getattr(logger, name))]:
        raise UserError(
            f"The logger {spec.name!r} of run.loggers has an async {' and an async '.join(late)}, which nothing awaits."
            " Write it without async."
        )
    return logger


def not_installed(name: str, extra: str) -> UserError:
    """Return the error for a logger whose library is missing."""
    return UserError(
        f"run.loggers has {name}, which is not installed. Install it (pip install 'agentloop[{extra}]'), or remove it "
        "from run.loggers (run.loggers=[] writes metrics.jsonl only)."
    )
