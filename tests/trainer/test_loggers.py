import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentloop.config_loading import validated
from agentloop.errors import UserError
from agentloop.trainer.loggers import TensorBoardLogger, make_loggers
from agentloop.trainer.run_config import RunConfig


def test_after_a_resume_tensorboard_shows_every_step_once(tmp_path):
    killed = TensorBoardLogger(tmp_path, done=-1)
    for step in range(5):
        killed.log(step, {"reward/mean": float(step)})
    resumed = TensorBoardLogger(tmp_path, done=2)
    for step in range(3, 6):
        resumed.log(step, {"reward/mean": step + 0.5})
    resumed.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert scalars == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]


def test_wandb_that_is_not_installed_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = validated(
        RunConfig,
        {"model": "m", "data": {"train": "t"}, "env": {"reward": "exact"}, "run": {"loggers": ["wandb"]}},
        "test",
    )
    with pytest.raises(UserError, match=r"agentloop\[wandb\]"):
        make_loggers(config, tmp_path, done=-1)
