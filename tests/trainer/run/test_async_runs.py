"""Asynchronous runs of the real thing: scripted and hf engine, real tool, real learner."""

import json
from collections import Counter
from typing import get_args

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.config.staleness import Mode
from agentloop.envs.sampler import TaskSampler
from agentloop.errors import UserError
from agentloop.trainer.run.train import train
from agentloop.trainer.schedule.observers import Observer
from agentloop.types.trajectory_io import read_jsonl, same

pytestmark = pytest.mark.slow

STEPS, GROUPS, SIZE = 6, 3, 4


async def run(sums, *overrides, observer=None):
    known = ["eval.every=0", "run.loggers=[]", "learner.corrections=[truncate]", *overrides]
    return await train(load_config(RunConfig, sums / "config.yaml", known), sums / "run", observer)


def trained(folder):
    """Return the trained trajectories of each step."""
    return [list(read_jsonl(folder.trajectories / f"step_{step:06d}.jsonl.gz")) for step in range(1, STEPS + 1)]


def assert_every_task_was_trained_once(folder):
    """In the order of the sampler, and each episode of it."""
    steps = trained(folder)
    assert [len(step) for step in steps] == [GROUPS * SIZE] * STEPS
    names = [trajectory.trajectory_id for step in steps for trajectory in step]
    assert len(set(names)) == len(names)
    prompts = Counter(trajectory.messages[0]["content"] for step in steps for trajectory in step)
    sampler = TaskSampler(10)
    rows = Counter(sampler.take(STEPS * GROUPS))
    assert sorted(prompts.values()) == sorted(SIZE * count for count in rows.values())


@pytest.mark.parametrize("mode", ["stream", "stale", "partial"])
@pytest.mark.parametrize("bound", [1, 3])
async def test_every_mode_trains_every_task_once_and_within_the_bound(sums, mode, bound):
    folder = await run(sums, f"staleness={{mode: {mode}, max_staleness: {bound}}}")
    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert max(line["staleness/max"] for line in lines) <= bound
    assert max(line["staleness/mean"] for line in lines) > 0
    assert_every_task_was_trained_once(folder)
    last = lines[-1]
    assert last["queue/admitted"] == last["queue/trained"] == STEPS * GROUPS * SIZE
    assert last["bias/tokens"] == pytest.approx(1.0)
    for version, step in enumerate(trained(folder)):
        assert all(version - bound <= min(t.versions[t.loss_mask]) <= version for t in step)


@pytest.mark.parametrize("mode", get_args(Mode))
async def test_an_evaluation_measures_the_weights_of_its_step(sums, mode):
    settings = [f"staleness.mode={mode}", "eval.every=1", "run.steps=4"]
    folder = await run(sums, *settings)
    evaluated = [list(read_jsonl(folder.trajectories / f"eval_{step:06d}.jsonl.gz")) for step in range(5)]
    assert [{int(v) for t in step for v in t.versions[t.loss_mask]} for step in evaluated] == [{0}, {1}, {2}, {3}, {4}]
    last = folder.read_metrics()[-1]
    assert last.get("queue/admitted", 48) == last.get("queue/trained", 48) == 4 * GROUPS * SIZE


async def test_a_real_model_is_trained_while_it_plays(sums):
    hf = "engine={name: hf, options: {device: cpu, max_model_len: 512}, max_concurrency: 8}"
    folder = await run(sums, hf, "staleness={mode: partial, max_staleness: 2}", "eval.every=6")
    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert 0 < max(line["staleness/max"] for line in lines[1:]) <= 2
    assert "eval/failed" in lines[-1]
    assert_every_task_was_trained_once(folder)


class Stop(Exception):
    pass


class StopsAt(Observer):
    def __init__(self, step):
        self.step = step

    def on_step(self, step, metrics):
        if step == self.step:
            raise Stop


async def test_the_queue_survives_an_interruption(sums):
    mode = "staleness={mode: partial, max_staleness: 2}"
    with pytest.raises(Stop):
        await run(sums, mode, "run.save_every=1", observer=StopsAt(3))
    checkpoint = sums / "run" / "checkpoints" / "step_000002"
    entries = json.loads((checkpoint / "state.json").read_text())["queue"]["entries"]
    waiting = {each.trajectory_id: each for each in read_jsonl(checkpoint / "queue.jsonl.gz")}
    assert len(waiting) == SIZE * sum(entry["episodes"] is not None for entry in entries) > 0

    folder = await run(sums, mode, "run.save_every=1")
    assert_every_task_was_trained_once(folder)
    last = folder.read_metrics()[-1]
    assert last["queue/admitted"] == last["queue/trained"] == STEPS * GROUPS * SIZE
    # What was finished is trained as it was, not played again.
    found = {t.trajectory_id: t for step in trained(folder) for t in step if t.trajectory_id in waiting}
    assert len(found) == len(waiting)
    assert all(same(found[name], trajectory) for name, trajectory in waiting.items())


async def test_failures_stop_the_run_and_are_played_again(sums):
    reward = sums / "reward.py"
    reward.write_text("num = 0\ndef reward(trajectory, task):\n    raise OSError('down')\n")
    mode = "staleness={mode: partial, max_staleness: 2}"
    with pytest.raises(UserError, match=r"Step 1 stopped: .*judge"):
        await run(sums, mode, f"env.reward={reward}:reward")
    reward.write_text("def reward(trajectory, task):\n    return float(trajectory.num_turns)\n")
    import sys

    for name in [name for name in sys.modules if name.startswith("agentloop_user_reward")]:
        del sys.modules[name]
    assert_every_task_was_trained_once(await run(sums, mode, f"env.reward={reward}:reward"))


@pytest.mark.parametrize("mode", ["stale", "partial"])
async def test_old_weights_need_a_correction(sums, mode):
    with pytest.raises(UserError, match=r"learner\.corrections=\[truncate\]"):
        await run(sums, f"staleness.mode={mode}", "learner.corrections=[]")
    await run(sums, f"staleness={{mode: {mode}, allow_uncorrected: true}}", "learner.corrections=[]", "run.steps=1")


async def test_a_group_that_is_never_complete_is_refused(sums):
    with pytest.raises(UserError, match=r"staleness\.cut\.min_episodes is 5"):
        await run(sums, "staleness={cut: {deadline: 1, min_episodes: 5}}")


async def test_a_group_of_one_that_teaches_nothing_is_refused(sums):
    with pytest.raises(UserError, match=r"min_episodes is 1: grpo compares the episodes of one task"):
        await run(sums, "staleness={cut: {deadline: 1, min_episodes: 1}}")


async def test_on_policy_counts_the_episodes_that_were_cut_also_before_a_resume(sums):
    await run(sums, "staleness={cut: {extra_episodes: 2}}", "run.steps=1")
    folder = await run(sums, "staleness={cut: {extra_episodes: 2}}", "run.steps=2")
    bias = json.loads((folder.checkpoints / "step_000002/state.json").read_text())["bias"]
    assert bias["trained"]["num"] == 2 * GROUPS * SIZE
    assert bias["aborted"]["num"] == 2 * GROUPS * 2
    last = folder.read_metrics()[-1]
    assert last["queue/admitted"] == 2 * GROUPS * (SIZE + 2)
    assert last["queue/trained"] == 2 * GROUPS * SIZE
    assert last["queue/dropped/surplus"] == 2 * GROUPS * 2
    assert last["time/bias_seconds"] > 0


async def test_after_an_outage_in_the_step_of_a_checkpoint_a_restart_plays_the_failed_groups_again(sums):
    reward = sums / "reward.py"
    reward.write_text(
        "num = 0\n"
        "def reward(trajectory, task):\n"
        "    global num\n"
        "    num += 1\n"
        "    return 1 / (num <= GROUPS * SIZE + 5 or not OUT.exists()) * (num % 2)\n"
    )
    outage = sums / "outage"
    outage.touch()
    head = f"from pathlib import Path\nGROUPS, SIZE, OUT = {GROUPS}, {SIZE}, Path({str(outage)!r})\n"
    reward.write_text(head + reward.read_text())
    overrides = [
        f"env.reward={reward}:reward",
        "staleness={mode: stale}",
        "run.save_every=1",
        "engine.max_concurrency=12",
        "run.max_failure_fraction=0.3",
    ]
    with pytest.raises(UserError, match=r"Step 2 stopped: \d+ of \d+ episodes failed \(judge"):
        await run(sums, *overrides)
    outage.unlink()
    folder = await run(sums, *overrides)
    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["failures/episodes"] for line in lines] == [0] * STEPS
    assert_every_task_was_trained_once(folder)
