import asyncio
import resource
import subprocess
import sys

import pytest

import agentloop
from agentloop.api import evaluation
from agentloop.errors import UserError
from agentloop.process.blocking import run_blocking
from agentloop.types.trajectory_io import read_jsonl

pytestmark = pytest.mark.slow

SHORT = {"run": {"steps": 2, "save_every": 1, "loggers": []}, "eval": {"every": 2}}


def test_a_run_and_what_it_left(sums, monkeypatch, capsys):
    monkeypatch.chdir(sums.parent)
    run = agentloop.train(sums, **SHORT)
    assert run.folder.parent.name == "runs"
    assert f"run folder {run.folder}" in capsys.readouterr().out
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert list(run.checkpoints) == [1, 2]
    assert run.config.run.steps == 2
    assert (run.model / "config.json").is_file()
    assert len(run.trajectories()) == len(run.trajectories(1)) == 12
    assert len(run.trajectories(0, split="eval")) == 3
    assert (run.export("out", step=1) / "config.json").is_file()
    with pytest.raises(UserError, match=r"no train trajectories of step 9\. Steps with trajectories: 1, 2"):
        run.trajectories(9)

    loaded = agentloop.load_run(run)
    assert (loaded.folder, loaded.metrics, loaded.config) == (run.folder, run.metrics, run.config)

    played = agentloop.rollout(run, tasks="train", limit=2, samples=2, output="played", progress=False)
    assert played.plays == f"the trained model of {run.folder}"
    assert played.summary["temperature"] == 1.0
    assert len(played.trajectories) == played.summary["episodes"] == 4
    written = {trajectory.trajectory_id for trajectory in agentloop.read_trajectories("played")}
    assert written == {trajectory.trajectory_id for trajectory in played.trajectories}


def test_a_run_of_objects_continues_where_it_was(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    config = agentloop.load_run(agentloop.train(sums, progress=False, **SHORT).folder).config
    folder = agentloop.train(config, run={"folder": "here"}, progress=False).folder
    longer = agentloop.train(config, run={"folder": folder, "steps": 3}, resume=True, progress=False)
    assert [line["step"] for line in longer.metrics] == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"has no checkpoint to resume from\. Omit resume"):
        agentloop.train(config, run={"folder": "elsewhere"}, resume=True)


def test_folders_that_are_no_run_are_refused(tmp_path):
    with pytest.raises(UserError, match="is not the folder of a training run"):
        agentloop.load_run(tmp_path)
    with pytest.raises(UserError, match="is not a file of trajectories"):
        agentloop.read_trajectories(tmp_path)
    (tmp_path / "trajectories.jsonl").write_text("")
    with pytest.raises(UserError, match=r"use agentloop\.read_trajectories"):
        agentloop.load_run(tmp_path)
    assert agentloop.read_trajectories(tmp_path) == []


async def _answer(value):
    await asyncio.sleep(0)
    return value


async def test_below_a_running_event_loop_the_call_has_a_thread_of_its_own():
    assert run_blocking(_answer, 3) == 3
    with pytest.raises(ZeroDivisionError):
        run_blocking(_fails)


async def _fails():
    raise ZeroDivisionError


def test_two_rollouts_do_not_write_to_one_folder(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    begun = []

    def another_begins(*_):
        begun.append(1)
        if len(begun) == 1:
            with pytest.raises(UserError, match=r"Another rollout writes to played \(process \d+ on .*\)\. Set output"):
                agentloop.rollout(sums, output="played", progress=False)
        return []

    monkeypatch.setattr(evaluation, "run_blocking", another_begins)
    monkeypatch.setattr("agentloop.api.figures.summary", lambda groups, threshold: {})
    agentloop.rollout(sums, output="played", progress=False)
    assert len(begun) == 1


def test_a_full_disk_ends_a_rollout_with_one_sentence(sums, monkeypatch):
    monkeypatch.chdir(sums.parent)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"is full .* and resume the rollout"):
            agentloop.rollout(sums, samples=8, output="played", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resumed = agentloop.rollout(sums, samples=8, output="played", resume=True, progress=False)
    assert resumed.summary["judged"] == 24
    assert len(list(read_jsonl("played/trajectories.jsonl"))) == 24


def test_the_first_rollouts_of_a_process_may_be_in_threads(sums):
    """A process of its own, which has not imported transformers yet."""
    script = """
import sys
from concurrent.futures import ThreadPoolExecutor
import agentloop

def play(number):
    return agentloop.rollout(sys.argv[1], limit=1, output=f"played-{number}", progress=False).summary["episodes"]

with ThreadPoolExecutor(4) as threads:
    print(list(threads.map(play, range(4))))
"""
    command = [sys.executable, "-c", script, str(sums)]
    played = subprocess.run(command, cwd=sums.parent, capture_output=True, text=True, check=False)
    assert (played.stdout, played.returncode) == ("[1.0, 1.0, 1.0, 1.0]\n", 0), played.stderr
