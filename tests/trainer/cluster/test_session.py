"""Checks before any worker starts. Only the last three tests start Ray."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.config.run import RunConfig
from agentloop.config.workers import WorkersConfig
from agentloop.errors import UserError
from agentloop.trainer.cluster.session import (
    Node,
    check_cores,
    check_room,
    check_workers_fit,
    connect,
    log_folder,
    of_learner,
    require_ray,
    shutdown,
)
from agentloop.trainer.run.steps import open_training
from agentloop.trainer.schedule.observers import Observer

pytestmark = pytest.mark.slow


def test_missing_ray_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'agentloop\[ray\]'.*workers\.kind=local"):
        connect(WorkersConfig(kind="ray"), gpus=0)


def test_far_more_workers_than_cores_are_refused_before_ray_starts():
    check_cores(WorkersConfig(kind="ray", count=8), cores=2)
    check_cores(WorkersConfig(kind="ray", count=50, cpus=0.16), cores=2)
    message = (
        r"workers\.count is 50, with workers\.cpus=1 each: 50 cores, but this machine has 2\. At most 4 workers may "
        r"share a core\. Set workers\.count=8 or less, workers\.cpus=0\.16"
    )
    with pytest.raises(UserError, match=message):
        check_cores(WorkersConfig(kind="ray", count=50), cores=2)


def test_address_without_an_answer_is_refused_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"No response from workers.address='{address}'.*ray start --head"):
            connect(WorkersConfig(kind="ray", address=address), gpus=0)


def test_a_cluster_that_refuses_the_run_is_not_called_missing(monkeypatch):
    """Ray reports a missing token as a failed connection."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(require_ray(), "init", _refused)
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(UserError, match=f"join the cluster at workers.address='{address}'.*RAY_AUTH_MODE"):
            connect(WorkersConfig(kind="ray", address=address), gpus=0)


def _refused(**_options: object) -> None:
    raise ConnectionError("Failed to connect to Ray cluster")


@pytest.mark.parametrize(
    ("address", "message"),
    [("head", "write 'host:port'"), ("ray://head:10001", "start the run on a node of the cluster")],
)
def test_malformed_addresses_are_refused_with_a_fix(address, message):
    with pytest.raises(UserError, match=message):
        connect(WorkersConfig(kind="ray", address=address), gpus=0)


def test_too_many_gpus_are_refused_with_the_numbers():
    nodes = [Node("a", 16, 4), Node("b", 16, 3)]
    check_room(nodes, WorkersConfig(kind="ray", count=3), gpus=2)
    with pytest.raises(UserError) as caught:
        check_room(nodes, WorkersConfig(kind="ray", count=4), gpus=2)
    message = str(caught.value)
    assert "workers.count is 4 and each worker needs 1 CPUs and 2 GPUs on one node, 4 CPUs and 8 GPUs in all" in message
    assert "room for 3: a has 16 CPUs and 4 GPUs; b has 16 CPUs and 3 GPUs" in message
    assert "Set workers.count=3" in message


@pytest.mark.parametrize(
    ("gpus_of_node", "gpus", "fit"),
    [(1, 0.33, 3), (1, 0.1, 10), (1, 0.34, 2), (2, 0.66, 2), (2, 0.5, 4), (4, 2, 2), (3, 1, 3), (0, 0.5, 0)],
)
def test_workers_with_a_fraction_of_a_gpu(gpus_of_node, gpus, fit):
    """A worker's fraction is of one GPU, not of the rest of two."""
    node = Node("a", 16, gpus_of_node)
    if fit:
        check_room([node], WorkersConfig(kind="ray", count=fit), gpus=gpus)
    with pytest.raises(UserError, match=f"room for {fit}"):
        check_room([node], WorkersConfig(kind="ray", count=fit + 1), gpus=gpus)


def test_no_worker_spans_two_nodes():
    with pytest.raises(UserError, match=r"room for 0: .*\. Lower workers\.cpus"):
        check_room([Node("a", 16, 4), Node("b", 16, 4)], WorkersConfig(kind="ray"), gpus=8)


def test_learner_of_several_nodes_takes_this_node_and_the_first_others_with_enough_gpus():
    found = [Node(name, 16, gpus, node_id=name) for name, gpus in (("here", 8), ("c", 8), ("a", 4), ("b", 8))]
    assert [node.name for node in of_learner(found, 2, 8)] == ["here", "b"]
    assert [node.name for node in of_learner(found, 3, 8)] == ["here", "b", "c"]
    with pytest.raises(UserError, match=r"needs 4 nodes with 8 GPUs each, but there are 3: here has 8 GPUs; .*a has 4"):
        of_learner(found, 4, 8)


def test_a_run_that_starts_ray_may_get_as_many_workers_as_it_could_start_with(warm_ray):
    ray, one = require_ray(), WorkersConfig(kind="ray", count=1)
    most = os.cpu_count() * 4
    assert connect(one, gpus=0)
    try:
        check_workers_fit(one.replace(count=most), gpus=0)
        with pytest.raises(UserError, match=f"there is room for {most}"):
            check_workers_fit(one.replace(count=most + 1), gpus=0)
    finally:
        ray.shutdown()


def test_sigterm_does_while_ray_runs_and_after_its_end_what_it_did_before(warm_ray, capfd):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        assert connect(WorkersConfig(kind="ray"), gpus=0)
        signal.raise_signal(signal.SIGTERM)
        shutdown()
        signal.raise_signal(signal.SIGTERM)
    finally:
        require_ray().shutdown()
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM] * 2
    assert "SIGTERM received" not in capfd.readouterr().err


@pytest.mark.parametrize("ended", [False, True])
def test_a_crash_prints_the_stack_while_ray_runs_and_after_its_end(ended):
    script = f"""
import os
from agentloop.config.workers import WorkersConfig
from agentloop.trainer.cluster.session import connect, shutdown
connect(WorkersConfig(kind="ray"), gpus=0)
if {ended}:
    shutdown()
os.abort()
"""
    crashed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert crashed.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in crashed.stderr


async def test_a_run_removes_the_session_of_its_ray_unless_it_fails(warm_ray, tmp_path):
    config = RunConfig.model_validate({"model": "m", "data": {"train": "a"}, "env": {}, "run": {"loggers": []}})

    async def run(name, error=None, *, keep_logs=False):
        async with open_training(config, tmp_path / name, Observer()):
            connect(WorkersConfig(kind="ray"), gpus=0)
            session = Path(log_folder()).parent
            shutdown(keep_logs=keep_logs)
            assert session.is_dir()
            if error is not None:
                raise UserError(f"{error} {session}")
        return session

    ended = await run("ended")
    assert not ended.exists()
    latest = ended.parent / "session_latest"
    assert not latest.is_symlink() or os.readlink(latest) != str(ended)
    with pytest.raises(UserError, match="the worker died") as failed:
        await run("failed", "the worker died")
    for kept in (Path(str(failed.value).split()[-1]), await run("lost workers", keep_logs=True)):
        assert (kept / "logs").is_dir()
        shutil.rmtree(kept)
