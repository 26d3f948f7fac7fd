"""The Weights & Biases logger offline and the MLflow logger on files, with the real libraries."""

import json
import logging
import time

import pytest

from agentloop.errors import UserError
from agentloop.trainer.run.loggers.mlflow import MlflowLogger
from agentloop.trainer.run.loggers.wandb import WandbLogger

pytestmark = pytest.mark.slow

CONFIG = {"model": "org/model", "env": {"tools": ["search"]}, "learner": {"lr": 0.5}}


def records(file):
    """Read the records of an offline wandb run, a file in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, found = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a block ends without room for a header
            at += 32768 - at % 32768
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(whole))
            whole = b""
    return found


def until(condition):
    """Wait until `condition()` holds: wandb has a process that still writes after a run is finished."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def history(folder):
    """Return the steps and rewards of the folder's offline runs in order, by file."""
    runs = {}
    for file in sorted(folder.glob("*/wandb/offline-run-*/*.wandb")):
        for record in records(file):
            values = {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item}
            if "reward/mean" in values:
                runs.setdefault(file.stem, []).append((values["_step"], values["reward/mean"]))
    return runs


def test_wandb_continues_its_run_and_has_every_step_once(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    # wandb names the folder of a run after the second in which it began: these two may begin in one.
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    killed = WandbLogger(tmp_path, CONFIG, done=-1, mode="offline", dir=str(first))
    for step in range(4):
        killed.log(step, {"reward/mean": step / 4})
    killed.close()
    resumed = WandbLogger(tmp_path, CONFIG, done=2, mode="offline", dir=str(second))
    for step in range(3, 6):
        resumed.log(step, {"reward/mean": step / 4})
    resumed.close()
    until(lambda: sum(map(len, history(tmp_path).values())) >= 6)
    ((_, steps),) = history(tmp_path).items()
    assert steps == [(step, step / 4) for step in range(6)]


def test_wandb_has_the_config_project_and_name(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    WandbLogger(tmp_path, CONFIG, done=-1, mode="offline", project="agents").close()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    until(lambda: any(record.run.run_id for record in records(file)))
    (run,) = (record.run for record in records(file) if record.run.run_id)
    assert (run.project, run.display_name) == ("agents", tmp_path.name)
    assert {item.key: json.loads(item.value_json) for item in run.config.update if item.key in CONFIG} == CONFIG


def test_wandb_without_a_login_names_a_fix(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match=r"wandb login.*WANDB_MODE=offline"):
        WandbLogger(tmp_path, CONFIG, done=-1)


def test_wandb_refuses_unknown_options(tmp_path):
    with pytest.raises(UserError, match="projekt"):
        WandbLogger(tmp_path, CONFIG, done=-1, projekt="agents", mode="offline")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Return a tracking URI of files in place of a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file:{tmp_path}/mlflow"


@pytest.fixture
def client(server):
    """Read and change what is at the server."""
    from mlflow import MlflowClient

    return MlflowClient(server)


def test_mlflow_continues_its_run_and_has_every_step_once(tmp_path, server, client):
    killed = MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=server)
    for step in range(4):
        killed.log(step, {"reward/mean": step / 4, "reward/a + b": 1.0})
    killed.close()
    resumed = MlflowLogger(tmp_path, CONFIG, done=2, tracking_uri=server)
    for step in range(3, 6):
        resumed.log(step, {"reward/mean": step / 4})
    resumed.close()
    (run,) = client.search_runs([client.get_experiment_by_name("agentloop").experiment_id])
    assert run.info.run_id == killed.run_id == resumed.run_id
    assert (run.info.run_name, run.info.status) == (tmp_path.name, "FINISHED")
    assert run.data.params == {"model": "org/model", "env.tools": "['search']", "learner.lr": "0.5"}
    logged = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(metric.step, metric.value) for metric in logged] == [(step, step / 4) for step in range(6)]
    assert len(client.get_metric_history(run.info.run_id, "reward/a _ b")) == 4


def test_two_runs_may_start_a_new_experiment_at_once(tmp_path, server, client, monkeypatch):
    from mlflow import MlflowClient

    find, asked = MlflowClient.get_experiment_by_name, []

    def find_late(self, name):
        """Answer as before the other run created the experiment, the first time."""
        asked.append(name)
        return find(self, name) if len(asked) > 1 else None

    client.create_experiment("agents")
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", find_late)
    logger = MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=server, experiment="agents")
    logger.close()
    assert client.get_run(logger.run_id).info.experiment_id == find(client, "agents").experiment_id


def test_failing_mlflow_server_loses_only_its_metrics(tmp_path, server, client, caplog):
    logger = MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=server)
    client.delete_run(logger.run_id)
    with caplog.at_level(logging.WARNING):
        logger.log(1, {"reward/mean": 0.5})
        logger.close()
    assert "metrics of step 1" in caplog.text


def test_unusable_tracking_uri_names_a_fix(tmp_path, server):
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"):
        MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri="nosuch://server")


def test_a_database_names_the_package_that_reads_it(tmp_path):
    with pytest.raises(UserError, match=r"pip install mlflow`"):
        MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")


def test_an_mlflow_run_that_is_elsewhere_names_the_file_to_remove(tmp_path, server):
    MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=server).close()
    with pytest.raises(UserError, match=r"remove \S+/mlflow_run\.json\."):
        MlflowLogger(tmp_path, CONFIG, done=1, tracking_uri=f"{server}-moved")


def test_a_folder_for_mlflow_that_cannot_be_made_is_named(tmp_path, server):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Not a directory.*MLFLOW_TRACKING_URI"):
        MlflowLogger(tmp_path, CONFIG, done=-1, tracking_uri=f"file:{tmp_path}/file/mlflow")
