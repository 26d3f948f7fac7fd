"""Where metrics go beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow, or a logger of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentloop.config.records import LOGGERS
from agentloop.errors import UserError
from agentloop.registry.options import check_call

if TYPE_CHECKING:
    from agentloop.config.records import LoggerConfig
    from agentloop.config.run import RunConfig


class Logger(Protocol):
    """Takes the metrics of each step. Made as `logger(folder, config, done=..., **options)`: the folder of the run, its
    whole config as plain data, and the last step that a resumed run has behind it (-1: none, step 0 is the evaluation
    before step 1). Steps after `done` may have been logged by the run that was killed, and come again."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def open_loggers(config: RunConfig, folder: Path, *, done: int) -> Iterator[list[Logger]]:
    """Those of `run.loggers`, closed at the end; see `Logger` for `done`.

    Raises `UserError` where one is not installed, does not take its options or cannot begin.
    """
    with ExitStack() as stack:
        loggers: list[Logger] = []
        for each in config.run.loggers:
            logger = _make(each, folder, config.model_dump(mode="json"), done)
            stack.callback(logger.close)
            loggers.append(logger)
        yield loggers


def _make(spec: LoggerConfig, folder: Path, config: dict[str, Any], done: int) -> Logger:
    found = LOGGERS.get(spec.name)
    call = "logger(folder, config, done=..., **options)"
    check_call(found, spec.options, folder, config, of=f"logger {spec.name!r}", call=call, done=done)
    return found(folder, config, done=done, **spec.options)


def not_installed(name: str, extra: str) -> UserError:
    """What to do about a logger whose library is missing."""
    return UserError(
        f"run.loggers has {name}, which is not installed: pip install 'agentloop[{extra}]', or take it out of "
        "run.loggers (run.loggers=[] writes metrics.jsonl only)."
    )
