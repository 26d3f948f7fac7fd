"""Ranks that die, raise or hang, and runs that are ended from outside."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
import torch.distributed as dist

from agentloop.errors import UserError
from agentloop.trainer.cluster import process_group
from agentloop.trainer.cluster.learner_ranks import LearnerRanks, warn_of_few_cores
from agentloop.trainer.cluster.rank_actor import Objects
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.cluster.session import log_folder
from agentloop.trainer.run.folder import RunFolder
from tests.support.processes import descendants, wait_until_gone
from tests.support.warm import started

pytestmark = [pytest.mark.usefixtures("warm_ray"), pytest.mark.slow]

RANK = "ray::RankActor"
"""Beginning of the name that Ray gives the process of a rank."""


@pytest.mark.parametrize(("ranks", "nodes", "fix"), [(3, 1, "learner.ranks=2"), (6, 2, "learner.ranks=4"), (4, 2, "")])
def test_a_warning_names_more_ranks_than_cores(monkeypatch, caplog, ranks: int, nodes: int, fix: str):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    warn_of_few_cores(ranks, nodes)
    assert (f"learner.ranks is {ranks} on {nodes} nodes" in caplog.text) == bool(fix)
    assert fix in caplog.text


def _raise(objects: Objects) -> None:
    if dist.get_rank() == 1:
        raise ValueError("a bug in the loss")
    dist.barrier()


def _divide(objects: Objects) -> None:
    if dist.get_rank() == 0:
        _ = 1 / 0
    dist.barrier()


def _meet(objects: Objects) -> None:
    dist.barrier()


def _kill_then_meet(objects: Objects, victim: int) -> None:
    if dist.get_rank() == 0:
        os.kill(victim, signal.SIGKILL)
    dist.barrier()


def _sleep(objects: Objects, seconds: float) -> None:
    time.sleep(seconds)


def test_a_rank_that_is_killed_ends_a_collective_with_its_name(capfd: pytest.CaptureFixture[str]):
    ranks = LearnerRanks(3, "cpu")
    ranks.run(_meet)
    victim = next(iter(descendants(os.getpid(), RANK)))

    started = time.monotonic()
    with pytest.raises(UserError, match=r"^Learner rank [12] of 3 died on node \S+: run the same command again"):
        ranks.run(_kill_then_meet, victim)
    assert time.monotonic() - started < 30
    with pytest.raises(UserError, match="died on node"):
        ranks.run(_meet)
    ranks.close()
    ranks.close()
    assert not ray.is_initialized()
    assert "raylet" not in "".join(capfd.readouterr())  # Ray's own paragraph about the death


def test_a_rank_that_dies_before_all_have_joined_is_named(monkeypatch: pytest.MonkeyPatch):
    join = process_group.join

    def join_alone(*args: Any) -> None:
        for pid in descendants(os.getpid(), RANK):
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)
        join(*args)

    monkeypatch.setattr(process_group, "join", join_alone)
    with pytest.raises(UserError, match="Learner rank 1 of 2 died on node"):
        LearnerRanks(2, "cpu")
    assert not ray.is_initialized()


def test_a_call_after_the_end_is_refused_and_starts_nothing():
    """As after Ctrl-C between two calls: the rank of this process has no thread any more, and Ray is gone."""
    ranks = LearnerRanks(2, "cpu")
    ranks.close()
    with pytest.raises(UserError, match="The learner was closed"):
        ranks.run(_meet)
    assert not ray.is_initialized()


def test_a_call_ends_when_the_learner_is_closed_meanwhile(monkeypatch: pytest.MonkeyPatch):
    """As after Ctrl-C: the run waits for the thread that makes the call, which Ray answers only until its shutdown."""
    ranks = LearnerRanks(2, "cpu", in_process=False)
    errors: list[UserError] = []

    def call() -> None:
        try:
            ranks.run(_sleep, 120.0)
        except UserError as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    time.sleep(0.5)
    kill, shutdown = ray.kill, ray.shutdown
    ended: list[bool] = []

    def shut_down() -> None:
        thread.join(0.5)
        ended.append(not thread.is_alive())
        shutdown()

    monkeypatch.setattr(ray, "kill", lambda *given, **options: threading.Timer(2.0, kill, given, options).start())
    monkeypatch.setattr(GpuReservation, "release", lambda reservation: None)  # it would kill the ranks, too
    monkeypatch.setattr(ray, "shutdown", shut_down)
    ranks.close()
    assert ended == [True]
    assert "was closed during a call" in str(errors)
    assert not ray.is_initialized()


@pytest.mark.usefixtures("ray")
def test_an_error_on_one_rank_ends_all_with_its_text():
    ranks = LearnerRanks(2, "cpu")
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"^Learner rank 1 of 2 raised ValueError: a bug in the loss on node \S+: run"):
        ranks.run(_raise)
    assert time.monotonic() - begun < 8  # it does not wait for a death that nobody will report
    ranks.close()


@pytest.mark.usefixtures("ray")
def test_an_error_of_rank_0_keeps_its_type_and_ends_the_others():
    ranks = LearnerRanks(2, "cpu")
    pids = descendants(os.getpid(), RANK)
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        ranks.run(_divide)
    assert time.monotonic() - begun < 8
    for pid in pids:
        wait_until_gone(pid)
    ranks.close()


@pytest.mark.usefixtures("ray")
def test_ranks_meet_while_a_thread_still_waits_for_ranks_that_never_came():
    """gloo waits for half an hour if a rank dies after it published its address."""
    store = process_group.listen(2)
    waiting = process_group.Rendezvous(process_group.THIS_HOST, store.port, 2, "cpu")
    begun = threading.Event()

    def wait_in_vain() -> None:
        begun.set()
        with suppress(RuntimeError):
            process_group.join(0, waiting)

    thread = threading.Thread(target=wait_in_vain, daemon=True)
    thread.start()
    begun.wait()
    time.sleep(0.5)
    with closing(LearnerRanks(2, "cpu")) as ranks:
        ranks.run(_meet)
    assert thread.is_alive()
    del store
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.usefixtures("ray")
def test_ranks_write_their_stacks_if_a_call_takes_long(caplog: pytest.LogCaptureFixture):
    with closing(LearnerRanks(2, "cpu", patience=0.5)) as ranks:
        with caplog.at_level(logging.WARNING):
            ranks.run(_sleep, 2.0)
        assert "has taken more than 0.5 s" in caplog.text
        deadline = time.monotonic() + 60
        while "in _sleep" not in _logs():  # Ray writes logs in a thread of its own
            assert time.monotonic() < deadline, _logs()
            time.sleep(0.1)


def _logs() -> str:
    return "".join(file.read_text() for file in Path(log_folder()).glob("worker-*.err"))


def test_a_run_survives_its_ranks_and_leaves_no_process(sums: Path):
    """The same command is started again after each way to end it, and resumes from the last checkpoint."""
    command = ["train", sums / "config.yaml", "learner.ranks=2", "run.steps=9", "run.save_every=1", "run.loggers=[]"]
    command += ["eval.every=0", f"run.folder={sums / 'run'}"]
    ended = [_run_until(command, sums / "run", end) for end in ("interrupt", "kill", "kill rank")]
    assert all(code != 0 for code, _, _ in ended)
    _, output, seconds = ended[-1]
    assert "Learner rank 1 of 2 died on node" in " ".join(output.split())
    assert "Traceback" not in output
    assert "raylet" not in output
    assert seconds < 30
    code, output = _run(command, sums / "output")
    assert code == 0, output
    assert not re.search("raylet|died|SIGTERM|destroy_process_group", output)
    steps = [line["step"] for line in RunFolder(sums / "run").read_metrics()]
    assert steps == list(range(1, 10))


def test_a_learner_in_a_process_of_its_own_dies_with_a_sentence_and_resumes_to_the_same_metrics(sums: Path):
    def command(name: str, *overrides: str) -> list[object]:
        options = ["run.steps=4", "run.save_every=1", "run.loggers=[]", "eval.every=0", f"run.folder={sums / name}"]
        return ["train", sums / "config.yaml", *options, *overrides]

    code, output = _run(command("here"), sums / "output")
    assert code == 0, output
    code, output, _ = _run_until(command("apart", "learner.in_process=false"), sums / "apart", "kill rank")
    assert code != 0
    assert "Learner rank 0 of 1 died on node" in " ".join(output.split())
    assert "Traceback" not in output
    code, output = _run(command("apart", "learner.in_process=false"), sums / "output")
    assert code == 0, output
    here, apart = (_outcomes(sums / name) for name in ("here", "apart"))
    assert len(here) == 4
    assert apart == here


def _outcomes(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of each step that do not measure time or memory."""
    names = ("loss", "reward", "learner/grad_norm", "learner/logprob_diff", "step")
    return [{name: line[name] for name in names if name in line} for line in RunFolder(folder).read_metrics()]


def _run(command: Sequence[object], output: Path) -> tuple[int, str]:
    """Return the exit code and the output of a run."""
    with started(command, output) as process:
        process.join(600)
        code = process.exitcode
    assert code is not None
    return code, output.read_text()


def _run_until(command: Sequence[object], folder: Path, end: str) -> tuple[int, str, float]:
    """Return how the run ended after some steps: its exit code, its output, and seconds since it was to end."""
    before = _num_steps(folder)
    file = folder.with_name("output")
    with started(command, file) as process:
        while _num_steps(folder) < before + 2:
            assert process.is_alive(), file.read_text()
            time.sleep(0.05)
        (rank,) = descendants(process.pid, RANK)
        if end == "interrupt":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(process.pid if end == "kill" else rank, signal.SIGKILL)
        since = time.monotonic()
        process.join(120)
        seconds = time.monotonic() - since
        wait_until_gone(rank)
        code = process.exitcode
    assert code is not None
    return code, file.read_text(), seconds


def _num_steps(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
