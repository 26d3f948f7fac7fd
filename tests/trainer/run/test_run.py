import asyncio
import gzip
import json
import os

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer, Part, Stage

pytestmark = pytest.mark.slow


class Log(Observer):
    """Remembers what it saw."""

    def __init__(self):
        self.done = None
        self.stages, self.parts, self.episodes, self.steps = [], [], [], []

    def on_start(self, config, folder, done):
        self.done = done

    def on_stage(self, step, stage):
        self.stages.append((step, stage))

    def on_part(self, part, seconds):
        self.parts.append((part, seconds is not None))

    def on_trajectory(self, step, trajectory):
        self.episodes.append((step, trajectory.trajectory_id))

    def on_step(self, step, metrics):
        self.steps.append(step)


async def run(sums, *overrides, observer=None):
    config = load_config(RunConfig, sums / "config.yaml", overrides)
    return await train(config, sums / "run", observer)


def without_time(lines):
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


async def test_a_run_leaves_metrics_trajectories_checkpoints_and_a_model(sums):
    log = Log()
    folder = await run(sums, observer=log)

    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6] == log.steps
    assert [line["policy_version"] for line in lines[1:]] == [1, 2, 3, 4, 5, 6]
    assert ["eval/reward/mean" in line for line in lines] == [True, False, False, False, True, False, True]
    assert all(0 < line["rollout/tool_call_rate"] < 1 for line in lines[1:])
    assert all(line["learner/grad_norm"] > 0 and line["learner/logprob_diff"] > 0 for line in lines[1:])
    assert {"time/rollout", "time/train", "time/publish", "time/step"} <= lines[1].keys()
    assert "time/eval" in lines[4]
    assert "time/save" in lines[5]
    for line in lines[1:]:
        parts = ("rollout", "train", "publish", "eval", "save")
        assert sum(line.get(f"time/{part}", 0) for part in parts) <= line["time/step"]
    assert {key for key in lines[0] if key.startswith("time/load")} == {
        "time/load",
        "time/load_workers",
        "time/load_learner",
    }
    assert not any(key.startswith("time/load") for line in lines[1:] for key in line)

    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step_000004", "step_000006"]
    assert (folder.model / "config.json").is_file()
    assert (folder.model / "tokenizer.json").is_file()
    assert list((folder.root / "tensorboard").iterdir())
    assert len(list(folder.trajectories.glob("step_*"))) == 6
    with gzip.open(folder.trajectories / "step_000001.jsonl.gz", "rt") as file:
        assert [json.loads(line)["trajectory_id"] for line in file] == [
            f"1-{g}-{k}" for g in range(3) for k in range(4)
        ]

    assert log.done == 0
    assert sorted(log.parts) == [(part, ended) for part in (Part.LEARNER, Part.WORKERS) for ended in (False, True)]
    assert log.stages[:5] == [
        (0, Stage.LOAD),
        (0, Stage.EVAL),
        (1, Stage.ROLLOUT),
        (1, Stage.TRAIN),
        (1, Stage.PUBLISH),
    ]
    assert len(log.episodes) == 6 * 12 + 3 * 3


async def test_the_resolved_config_in_the_folder_runs_again(sums):
    folder = await run(sums, "run.steps=1")
    again = load_config(RunConfig, folder.config_file)
    assert again == load_config(RunConfig, sums / "config.yaml", ["run.steps=1"])


async def test_more_steps_go_on_as_if_the_run_had_never_stopped(sums, tmp_path):
    config = load_config(RunConfig, sums / "config.yaml", ["eval.every=0"])
    whole = await train(config, tmp_path / "whole")
    first = load_config(RunConfig, sums / "config.yaml", ["eval.every=0", "run.steps=3"])
    await train(first, tmp_path / "parts")
    log = Log()
    parts = await train(config, tmp_path / "parts", log)
    assert log.done == 3
    assert log.steps == [4, 5, 6]
    assert without_time(parts.read_metrics()) == without_time(whole.read_metrics())


async def test_a_finished_run_is_left_as_it_is(sums):
    folder = await run(sums, "run.steps=2")
    before = folder.metrics_file.read_bytes()
    log = Log()
    await run(sums, "run.steps=2", observer=log)
    assert folder.metrics_file.read_bytes() == before
    assert log.steps == []


async def test_only_the_configured_number_of_trajectories_is_written(sums):
    folder = await run(sums, "run.steps=1", "run.save_trajectories=5")
    with gzip.open(folder.trajectories / "step_000001.jsonl.gz", "rt") as file:
        assert len(list(file)) == 5


async def test_a_run_whose_episodes_mostly_fail_stops_with_the_reason_and_keeps_its_steps(sums):
    reward = sums / "reward.py"
    reward.write_text(
        "num = 0\n"
        "def reward(trajectory, task):\n"
        "    global num\n"
        "    num += 1\n"
        "    return 1 / (num <= 12 * 3 + 5) * (num % 2)\n"
    )
    with pytest.raises(UserError) as caught:
        await run(sums, f"env.reward={reward}:reward", "eval.every=0", "run.save_every=100")
    message = str(caught.value)
    assert "Step 4 stopped: 7 of 12 episodes failed (judge 7)" in message
    assert "ZeroDivisionError: division by zero" in message
    assert "reward.py:reward" in message
    assert f"run.folder={sums}/run" in message

    # After a correction of the reward the run resumes after the last complete step.
    reward.write_text("def reward(trajectory, task):\n    return float(trajectory.num_turns)\n")
    import sys

    for name in [name for name in sys.modules if name.startswith("agentloop_user_reward")]:
        del sys.modules[name]
    log = Log()
    folder = await run(sums, f"env.reward={reward}:reward", "eval.every=0", "run.save_every=100", observer=log)
    assert log.done == 3
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4, 5, 6]


async def test_few_failures_are_counted_and_left_out_of_the_batch(sums):
    reward = sums / "reward.py"
    reward.write_text(
        "def reward(trajectory, task):\n"
        "    if trajectory.trajectory_id.endswith('-0'):\n"
        "        raise OSError('down')\n"
        "    return float(trajectory.num_turns)\n"
    )
    folder = await run(sums, f"env.reward={reward}:reward", "run.steps=1", "eval.every=0")
    (line,) = folder.read_metrics()
    assert line["failures/judge"] == line["failures/episodes"] == line["batch/no_reward"] == 3
    assert line["learner/num_trajectories"] == 9


async def test_a_model_that_is_too_short_is_refused_before_it_loads(sums):
    with pytest.raises(UserError, match=r"limits\.max_tokens is 9999.*1024"):
        await run(sums, "limits.max_tokens=9999", "learner.token_budget=10000")
    assert not (sums / "run").exists()


async def test_a_second_run_in_the_folder_is_refused_and_the_first_goes_on(sums):
    class Second(Log):
        def on_step(self, step, metrics):
            super().on_step(step, metrics)
            self.tried = self.tried or asyncio.create_task(run(sums, "eval.every=0"))

        tried = None

    log = Second()
    folder = await run(sums, "eval.every=0", "run.save_every=1", observer=log)
    with pytest.raises(UserError, match=rf"Another run uses the folder {sums}/run \(process {os.getpid()} on"):
        await log.tried
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4, 5, 6]
