import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.loggers import open_loggers
from agentloop.trainer.run.loggers.tensorboard import TensorBoardLogger
from agentloop.trainer.run.loggers.tracked_run import RememberedRun

OWN = """
class Csv:
    def __init__(self, folder, config, *, done, delimiter=","):
        self.file = (folder / "own.csv").open("a")
        self.file.write(f"{config['model']} {done}\\n")
        self.delimiter = delimiter

    def log(self, step, metrics):
        self.file.write(self.delimiter.join([str(step), str(metrics["reward/mean"])]) + "\\n")

    def close(self):
        self.file.close()
"""


def config_with(*loggers) -> RunConfig:
    run = {"loggers": list(loggers)}
    data = {"model": "m", "data": {"train": "t.jsonl"}, "env": {"reward": "exact"}, "run": run}
    return validated(RunConfig, data, "test")


def test_after_a_resume_tensorboard_shows_every_step_once(tmp_path):
    killed = TensorBoardLogger(tmp_path, {}, done=-1)
    for step in range(5):
        killed.log(step, {"reward/mean": float(step)})
    resumed = TensorBoardLogger(tmp_path, {}, done=2)
    for step in range(3, 6):
        resumed.log(step, {"reward/mean": step + 0.5})
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert scalars == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]


def test_custom_logger_gets_folder_config_and_options(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    config = config_with("tensorboard", {"name": f"{tmp_path}/own.py:Csv", "options": {"delimiter": ";"}})
    with open_loggers(config, tmp_path, done=3) as loggers:
        for logger in loggers:
            logger.log(4, {"reward/mean": 0.5})
    assert (tmp_path / "own.csv").read_text() == "m 3\n4;0.5\n"


def test_unknown_options_of_a_logger_are_named(tmp_path):
    config = config_with({"name": "tensorboard", "options": {"project": "x"}})
    with pytest.raises(UserError, match=r"'tensorboard'.*'project'"), open_loggers(config, tmp_path, done=-1):
        pass


@pytest.mark.parametrize(
    ("body", "error"),
    [("raise OSError('no server')", r"cannot start: OSError: no server \(own\.py"), ("pass", "no method log and no")],
)
def test_a_logger_that_cannot_start_is_named(tmp_path, body, error):
    (tmp_path / "own.py").write_text(f"class Own:\n    def __init__(self, folder, config, *, done):\n        {body}\n")
    with pytest.raises(UserError, match=rf"own\.py:Own' of run\.loggers .*{error}"):
        open_loggers(config_with(f"{tmp_path}/own.py:Own"), tmp_path, done=-1).__enter__()


def test_a_logger_that_fails_is_named(tmp_path, caplog):
    (tmp_path / "own.py").write_text(
        "class Own:\n    def __init__(self, folder, config, *, done): ...\n    def log(self, step, metrics):\n"
        "        metrics['none']\n    def close(self):\n        raise OSError('no server')\n"
    )
    with (
        pytest.raises(
            UserError, match=r"own\.py:Own' of run\.loggers failed at step 4: KeyError: 'none' \(own\.py, l.* 4"
        ),
        open_loggers(config_with(f"{tmp_path}/own.py:Own"), tmp_path, done=-1) as loggers,
    ):
        loggers[0].log(4, {})
    assert "of run.loggers failed to close: OSError: no server (own.py, line 6)" in caplog.text


_QUIET = "class Own:\n    def __init__(self, folder, config, *, done): ...\n    def close(self): ...\n"


def test_a_logger_with_an_async_method_is_refused(tmp_path):
    (tmp_path / "own.py").write_text(f"{_QUIET}    async def log(self, step, metrics): ...\n")
    with pytest.raises(UserError, match=r"has an async log, which nothing awaits\. Write it without async\."):
        open_loggers(config_with(f"{tmp_path}/own.py:Own"), tmp_path, done=-1).__enter__()


def test_a_logger_cannot_change_the_metrics_of_others(tmp_path):
    (tmp_path / "own.py").write_text(f"{_QUIET}    def log(self, step, metrics):\n        metrics.clear()\n")
    metrics = {"reward/mean": 0.5}
    with open_loggers(config_with(f"{tmp_path}/own.py:Own"), tmp_path, done=-1) as (logger,):
        logger.log(4, metrics)
    assert metrics == {"reward/mean": 0.5}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_logger_error_says_how_to_install_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"agentloop\[{name}\]"), open_loggers(config_with(name), tmp_path, done=-1):
        pass


@pytest.mark.parametrize("text", ["", '{"id": "a1b2', '{"step": 3}', "[]", '{"id": "a1b2", "step": null}'])
def test_a_damaged_record_of_a_tracked_run_names_the_file_to_remove(tmp_path, text):
    file = tmp_path / "wandb_run.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"wandb_run.json is damaged: .* Remove it"):
        RememberedRun(file)
    file.unlink()
    RememberedRun(file).begin("a1b2")
    assert RememberedRun(file).id == "a1b2"
