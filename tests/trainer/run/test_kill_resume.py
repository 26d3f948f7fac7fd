"""Kill -9 at random moments of a training run, resume, and compare with a run that nobody killed."""

import multiprocessing
import random
import time

import pytest

from agentloop.cli import main
from agentloop.trainer.run.folder import RunFolder
from benchmarks.runs.chaos import SLOW_IMPORTS

pytestmark = pytest.mark.slow

NUM_KILLS = 10
STEPS = 12
SAMPLING = "algorithm.dynamic_sampling={oversampling: 1.25}"
"""Steps then take different numbers of tasks."""


@pytest.fixture(scope="module")
def processes():
    """Starts processes that have the slow imports behind them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SLOW_IMPORTS)
    server = context.Process(target=time.sleep, args=(0,))
    server.start()
    server.join()
    return context


def start(processes, sums, folder):
    arguments = ["train", str(sums), f"run.folder={folder}", f"run.steps={STEPS}", "run.loggers=[]", SAMPLING]
    process = processes.Process(target=main, args=(arguments,))
    process.start()
    return process


def finished_run(processes, sums, folder):
    """Seconds until the first step was done, and until the end."""
    started = time.monotonic()
    process = start(processes, sums, folder)
    while not (folder / "metrics.jsonl").is_file() and process.is_alive():
        time.sleep(0.005)
    first = time.monotonic() - started
    process.join()
    assert process.exitcode == 0
    return first, time.monotonic() - started


def comparable(folder):
    return [
        {key: value for key, value in line.items() if not key.startswith("time/")}
        for line in RunFolder(folder).read_metrics()
    ]


def test_a_run_killed_ten_times_is_the_run_that_was_never_killed(processes, sums, tmp_path):
    first, whole = finished_run(processes, sums, tmp_path / "whole")
    expected = comparable(tmp_path / "whole")
    assert [line["step"] for line in expected] == list(range(STEPS + 1))

    rng = random.Random()
    folders, kills, kills_after_a_step = [tmp_path / "killed-0"], 0, 0
    while kills < NUM_KILLS:
        process = start(processes, sums, folders[-1])
        process.join(rng.uniform(first / 2, first + (whole - first) / 2))
        if process.is_alive():
            kills += 1
            kills_after_a_step += bool(RunFolder(folders[-1]).read_metrics())
        process.kill()
        process.join()
        if process.exitcode == 0:
            folders.append(tmp_path / f"killed-{len(folders)}")
    for folder in folders:
        finished_run(processes, sums, folder)
        assert comparable(folder) == expected
    assert kills_after_a_step > 0
    assert (folders[0] / "model" / "config.json").is_file()
