"""A step does not wait for rewards: they have threads of their own."""

import threading

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.train import train

pytestmark = pytest.mark.slow


async def test_a_learner_steps_while_every_reward_thread_is_taken(sums, monkeypatch):
    """Rewards of later groups end only after the first step: if they held its threads, the run would never end."""
    (sums / "reward.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "def reward(trajectory, task):\n"
        "    until = time.monotonic() + 60\n"
        "    is_later = int(trajectory.group_id.rpartition('-')[2]) >= 3\n"
        "    while is_later and not Path(__file__).with_name('stepped').exists():\n"
        "        assert time.monotonic() < until, 'the step waits for rewards'\n"
        "        time.sleep(0.05)\n"
        "    return trajectory.place % 2\n"
    )
    step = FsdpLearner.step
    names = []

    def stepped(self, batch):
        names.append(threading.current_thread().name)
        metrics = step(self, batch)
        (sums / "stepped").touch()
        return metrics

    monkeypatch.setattr(FsdpLearner, "step", stepped)
    overrides = [f"env.reward={sums}/reward.py:reward", "staleness={mode: stale, max_staleness: 6}"]
    overrides += [
        "engine.max_concurrency=12",
        "run.steps=2",
        "eval.every=0",
        "run.loggers=[]",
        "learner.corrections=[truncate]",
    ]
    folder = await train(load_config(RunConfig, sums / "config.yaml", overrides), sums / "run")
    assert [line["failures/judge"] for line in folder.read_metrics()] == [0, 0]
    assert set(names) == {"agentloop-learner"}
