"""Runs in which engines sleep while the learner trains, and the learner while they sample."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.engines import ENGINES, EngineKind
from agentloop.engines.base import EngineDead
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.errors import UserError
from agentloop.trainer.learner.base_learner import BaseLearner
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.folder import RunFolder
from agentloop.trainer.run.train import train

pytestmark = pytest.mark.slow

HF = ["engine.name=hf", "engine.options={device: cpu}", "limits.max_turn_tokens=8", "learner.lr=1e-2"]
ONE_BY_ONE = "engine.max_concurrency=1"
"""Without it timing decides which turns share a batch, and that changes the last bits of logprobs."""
SLEEP = "placement.sleep=true"
ENGINES.add(
    "scripted_on_gpus", EngineKind(target="agentloop.engines.testing.scripted:ScriptedEngine", runs_on_gpus=True)
)
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from agentloop.config.loading import load_config
from agentloop.engines.hf.engine import HfEngine
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.trainer.run.train import train
from agentloop.config.run import RunConfig

sums, folder, *overrides = sys.argv[1:]
steps, sleep, wake, asleep = FsdpLearner.step, HfEngine.sleep, HfEngine.wake, set()

async def note_sleep(self, **options):
    await sleep(self, **options)
    asleep.add(self)

async def note_wake(self):
    await wake(self)
    asleep.discard(self)

def step(self, batch):
    if self.progress.steps == 1 and asleep:
        os.kill(os.getpid(), signal.SIGKILL)
    return steps(self, batch)

HfEngine.sleep, HfEngine.wake, FsdpLearner.step = note_sleep, note_wake, step
asyncio.run(train(load_config(RunConfig, Path(sums) / "config.yaml", overrides), Path(folder)))
"""


def config(sums, *overrides):
    return load_config(RunConfig, sums / "config.yaml", ["run.loggers=[]", *overrides])


def comparable(folder):
    """Return the lines of metrics.jsonl without times."""
    lines = RunFolder(folder).read_metrics()
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


async def test_results_are_those_of_a_run_without_sleep_byte_for_byte_also_after_a_kill_asleep(sums, tmp_path):
    (sums / "reward.py").write_text("def reward(trajectory, task):\n    return sum(trajectory.ids) % 7\n")
    settings = [
        *HF,
        ONE_BY_ONE,
        f"env.reward={sums}/reward.py:reward",
        "run.steps=3",
        "run.save_every=1",
        "eval.every=3",  # else it leaves prefixes in a cache that sleep empties
    ]
    await train(config(sums, *settings), tmp_path / "awake")
    await train(config(sums, *settings, SLEEP), tmp_path / "asleep")
    assert weights(tmp_path / "asleep") == weights(tmp_path / "awake")
    assert comparable(tmp_path / "asleep") == comparable(tmp_path / "awake")
    first, *lines = RunFolder(tmp_path / "asleep").read_metrics()
    assert "time/sleep" not in first
    assert all("time/sleep" in line for line in lines)
    assert ["time/wake" in line for line in lines] == [False, True, True], "the evaluation before step 1 woke them"

    command = [sys.executable, "-c", KILLED, str(sums), str(tmp_path / "killed"), "run.loggers=[]", *settings, SLEEP]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums are rounded by it
    run = partial(subprocess.run, command, env=environment, capture_output=True, text=True, timeout=300)
    killed = await asyncio.to_thread(run)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "awake")[:2]
    await train(config(sums, *settings, SLEEP), tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "awake")
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "awake")


class Gpu:
    """A GPU with memory for learner or engine. Asserts that only one of them holds it, and that none works without
    it."""

    def __init__(self, monkeypatch):
        self.owners = {"engine"}
        self.turns = []
        for owner, kind in (("learner", BaseLearner), ("engine", ScriptedEngine)):
            monkeypatch.setattr(kind, "sleep", self.leaves(owner, kind.sleep))
            monkeypatch.setattr(kind, "wake", self.takes(owner, kind.wake))
        monkeypatch.setattr(ScriptedEngine, "release", self.used_by("engine", ScriptedEngine.release))
        for method in ("step", "capture", "load", "save_hf", "weights"):
            monkeypatch.setattr(FsdpLearner, method, self.used_by("learner", getattr(FsdpLearner, method)))

    def leaves(self, owner, method):
        def sleep(thing, **options):
            self.owners.discard(owner)
            return method(thing, **options)

        return sleep

    def takes(self, owner, method):
        def wake(thing):
            assert self.owners <= {owner}, f"{owner} wakes beside {self.owners}"
            if self.owners != {owner}:
                self.turns.append(owner)
            self.owners = {owner}
            return method(thing)

        return wake

    def used_by(self, owner, method):
        def work(thing, *args):
            # The learner is made awake, while the engine sleeps.
            assert owner in self.owners or (owner == "learner" and not self.owners), f"{owner} works asleep"
            return method(thing, *args)

        return work


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        (["staleness.mode=on_policy"], 4),
        (["staleness.mode=stream"], 2),  # two steps for each
        (["staleness.mode=stale", "staleness.allow_uncorrected=true"], None),
        (["algorithm.dynamic_sampling={oversampling: 1.25}"], 4),
        (["algorithm.advantage=remax", "algorithm.group_size=1"], 4),
    ],
    ids=str,
)
async def test_they_take_turns_in_every_mode(sums, tmp_path, monkeypatch, settings, rounds):
    gpu = Gpu(monkeypatch)
    plain = [SLEEP, "eval.every=0", "run.save_every=4", *settings]
    await train(config(sums, *plain, "run.steps=4"), tmp_path / "run")
    assert gpu.owners in ({"learner"}, set())
    if rounds is not None:
        assert gpu.turns == ["engine", "learner"] * rounds
    # Resume, and save and evaluate at other times.
    gpu.owners = {"engine"}
    more = [SLEEP, "eval.every=3", "run.save_every=1", *settings]
    await train(config(sums, *more, "run.steps=7"), tmp_path / "run")
    assert [line["step"] for line in RunFolder(tmp_path / "run").read_metrics()] == [1, 2, 3, 4, 5, 6, 7]


async def test_an_engine_that_dies_asleep_costs_nothing_but_a_restart(sums, tmp_path, monkeypatch):
    await train(config(sums, "eval.every=0", "run.steps=3"), tmp_path / "awake")
    slept = []
    sleep = ScriptedEngine.sleep

    async def dies(self, *, keep_weights=True):
        slept.append(keep_weights)
        if len(slept) == 2:
            raise EngineDead("killed")
        await sleep(self, keep_weights=keep_weights)

    monkeypatch.setattr(ScriptedEngine, "sleep", dies)
    options = json.dumps(config(sums).engine.options)
    restarted = ["engine.name=scripted_on_gpus", f"engine.options={options}", "run.max_logprob_diff=null"]
    await train(config(sums, "eval.every=0", "run.steps=3", SLEEP, *restarted), tmp_path / "asleep")
    assert slept == [True, True, False, False], "its own weights are kept only until there are others"
    lines = comparable(tmp_path / "asleep")
    assert [line.pop("workers/engine_died", 0) for line in lines] == [0, 1, 1]
    assert lines == comparable(tmp_path / "awake")
    assert weights(tmp_path / "asleep") == weights(tmp_path / "awake")


async def test_a_run_that_ends_while_its_learner_sleeps_saves_its_last_step(sums, tmp_path):
    broken = tmp_path / "run" / "metrics.jsonl"
    (sums / "reward.py").write_text(
        "from pathlib import Path\n"
        "def reward(trajectory, task):\n"
        f"    if Path({str(broken)!r}).exists() and not Path({str(sums)!r}, 'mended').exists():\n"
        "        raise ValueError('broken')\n"
        "    return 1.0\n"
    )
    settings = [SLEEP, "eval.every=0", "run.save_every=100", f"env.reward={sums}/reward.py:reward", "run.steps=2"]
    with pytest.raises(UserError, match="broken"):
        await train(config(sums, *settings), tmp_path / "run")
    assert [line["step"] for line in RunFolder(tmp_path / "run").read_metrics()] == [1]
    (sums / "mended").touch()
    folder = await train(config(sums, *settings), tmp_path / "run")
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "staleness={mode: partial, allow_uncorrected: true}",
            r"staleness\.mode is partial.*Set placement\.sleep=false",
        ),
        ("placement.layout=separate", r"placement\.layout is separate.*share no GPU"),
    ],
)
def test_settings_without_time_sharing_are_refused(sums, setting, message):
    with pytest.raises(UserError, match=message):
        check_trainable(config(sums, SLEEP, setting))
    check_trainable(config(sums, setting))


def test_sleep_is_off_by_default(sums):
    assert not config(sums).placement.sleeps
    assert config(sums, SLEEP).placement.sleeps
