"""Log metrics to MLflow."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.trainer.run.loggers import not_installed
from agentloop.trainer.run.loggers.tracked_run import RememberedRun
from agentloop.types.plain_data import flat

_logger = logging.getLogger(__name__)

_FILE = "mlflow_run.json"
"""File in the run folder with the id of the MLflow run."""
_MOST_PARAMS = 100
"""Largest number of parameters in one request."""
_MOST_CHARS = 6000
"""Largest number of characters of a parameter."""


class MlflowLogger:
    """Logs to an MLflow run that is named after the run folder and has the config as its parameters.

    A resumed run continues the same MLflow run. If the server fails during the run, metrics are lost but training
    continues. `tracking_uri` and `experiment` default to MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. If neither is
    set, the experiment is "agentloop".
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        done: int,
        tracking_uri: str | None = None,
        experiment: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowException
            from mlflow.entities import Metric, Param
            from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise not_installed("mlflow", "mlflow") from error
        self._metric, self._errors = Metric, (MlflowException, OSError)
        self._remembered = RememberedRun(folder / _FILE)
        try:
            self._client = MlflowClient(tracking_uri)
            self.run_id = self._remembered.id or self._begin(
                experiment or MLFLOW_EXPERIMENT_NAME.get() or "agentloop",
                folder.name,
                [Param(key, str(value)[:_MOST_CHARS]) for key, value in flat(config)],
            )
            self._client.update_run(self.run_id, status="RUNNING")
        except (MlflowException, OSError) as error:
            known = f" To begin a new MLflow run, remove {folder / _FILE}." if self._remembered.id else ""
            raise UserError(
                f"mlflow cannot start a run: {str(error).strip().rstrip('.')}. Set tracking_uri of the logger or "
                "MLFLOW_TRACKING_URI to a server or a database (sqlite:///mlflow.db, after `pip install mlflow`), or "
                f"remove mlflow from run.loggers.{known}"
            ) from error
        self._remembered.begin(self.run_id)
        self._thread = ThreadPoolExecutor(1, "agentloop-mlflow")  # a slow server must not delay episodes

    def _begin(self, experiment: str, name: str, params: Sequence[Any]) -> str:
        run_id = self._client.create_run(self._id_of(experiment), run_name=name).info.run_id
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MOST_PARAMS])
        return str(run_id)

    def _id_of(self, experiment: str) -> str:
        known = self._client.get_experiment_by_name(experiment)
        if known is None:
            try:
                return str(self._client.create_experiment(experiment))
            except self._errors:  # a run that started at the same time may have created it
                known = self._client.get_experiment_by_name(experiment)
                if known is None:
                    raise
        return str(known.experiment_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        entries = [self._metric(_allowed(name), float(value), now, step) for name, value in metrics.items()]
        self._thread.submit(self._send, step, entries)

    def _send(self, step: int, entries: Sequence[Any]) -> None:
        if not self._remembered.is_new(step):
            return
        try:
            self._client.log_batch(self.run_id, metrics=entries)
        except self._errors as error:
            _logger.warning("mlflow did not store the metrics of step %d: %s", step, error)
        else:
            self._remembered.mark_sent(step)

    def close(self) -> None:
        self._thread.shutdown()
        try:
            self._client.set_terminated(self.run_id)
        except self._errors as error:
            _logger.warning("mlflow still shows the run as running, because marking its end failed: %s", error)


def _allowed(name: str) -> str:
    """Replace characters that MLflow does not allow in the name of a metric."""
    return re.sub(r"[^\w\-./: ]", "_", name)
