"""`learner.nodes`: ranks on the nodes of a Ray cluster. Here both nodes are of this machine;
benchmarks/runs/two_nodes.sh has two with a network between them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch.distributed as dist
from ray.cluster_utils import Cluster

from agentloop.config.learner import LearnerConfig
from agentloop.errors import UserError
from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.cluster import shared_folder
from agentloop.trainer.cluster.rank_process import Objects
from agentloop.trainer.cluster.rank_processes import RankProcesses
from agentloop.trainer.learner import ranked_learner as ranked
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.run.learners import create
from tests.support.tiny import random_batch as _random_batch

pytestmark = pytest.mark.usefixtures("two_nodes")


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def _config(model: Path, **options: object) -> LearnerConfig:
    values: dict[str, object] = {"device": "cpu", "ranks": 2, "nodes": 2, "token_budget": 256, "lr": 1e-3, **options}
    return LearnerConfig(model=str(model), **values)  # type: ignore[arg-type]


def _batch(seed: int) -> TrainBatch:
    batch: TrainBatch = _random_batch(7, seed=seed, lengths=(4, 60))
    return batch


def _trained(learner: Learner, tmp_path: Path) -> list[float]:
    """What two steps, a checkpoint, a step, and the step again from the checkpoint come to."""
    found = [learner.step(_batch(seed))[name] for seed in (0, 1) for name in ("loss", "grad_norm")]
    learner.save(tmp_path)
    found.append(learner.step(_batch(2))["loss"])
    learner.load(tmp_path)
    found.append(learner.step(_batch(2))["loss"])
    assert found[-1] == found[-2]
    found += [float(value) for part in learner.logprobs(_batch(3).samples) for value in part]
    learner.close()
    return found


def test_two_ranks_on_two_nodes_are_those_of_one_node_bit_for_bit(sums_model: Path, tmp_path: Path):
    spread = create(_config(sums_model))
    assert ranked._processes is not None
    assert ranked._processes.pids == {}, "the other rank is no child of this process"
    spread_numbers = _trained(spread, tmp_path / "spread")
    together = _trained(create(_config(sums_model, nodes=1)), tmp_path / "together")
    assert spread_numbers == together


def test_nodes_that_hold_a_whole_copy_each_train_as_if_they_divided_one(sums_model: Path, tmp_path: Path):
    numbers = {}
    for shard in ("node", "all"):
        learner = create(_config(sums_model, shard=shard))
        numbers[shard] = _trained(learner, tmp_path / shard)
    assert numbers["node"] == pytest.approx(numbers["all"], rel=1e-5)


def _say_pid(objects: Objects, file: Path) -> None:
    file.write_text(str(os.getpid()))


def test_a_rank_of_another_node_that_dies_is_named_with_its_node(sums_model: Path, tmp_path: Path):
    learner = create(_config(sums_model))
    assert ranked._processes is not None
    ranked._processes.run(lambda: None, _say_pid, tmp_path / "pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(UserError, match=r"rank 1 of 2 on node \S+ was killed by signal 9 \(SIGKILL\).*last checkpoint"):
        learner.step(_batch(0))
    learner.close()


def _say_parent(objects: Objects, file: Path) -> None:
    file.write_text(str(os.getppid()))


def _meet(objects: Objects) -> None:
    dist.barrier()


def test_what_all_nodes_must_see_is_looked_for_and_a_node_that_is_lost_is_named(
    sums_model: Path, tmp_path: Path, monkeypatch
):
    ranks = RankProcesses(2, "cpu", 2)
    shared_folder.check(ranks, sums_model, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shared_folder, "_digest", lambda model: "another")
    with pytest.raises(UserError, match=rf"model is {sums_model}, and .* has another config.json there"):
        shared_folder.check(ranks, sums_model, None)
    monkeypatch.undo()
    monkeypatch.setattr(shared_folder, "_APPEARS", 0.0)
    monkeypatch.setattr(Path, "touch", lambda path: None)  # as if only this node had written it
    with pytest.raises(UserError, match=rf"written to {tmp_path}, and \S+, a node of the learner, does not see.*NFS"):
        shared_folder.check(ranks, sums_model, tmp_path)
    ranks.run(lambda: None, _say_parent, tmp_path / "pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # the actor: all that Ray knows of the node
    with pytest.raises(UserError, match=r"rank 1 of 2 was lost with its node \S+ \(ActorDied"):
        ranks.run(dist.barrier, _meet)
    ranks.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 3}, "learner.ranks is 3 on 2 nodes.*multiple of 2"),
        ({"ranks": 3, "nodes": 3}, r"needs 3 nodes with 0 GPUs each, but there are 2: .*ray start"),
    ],
)
def test_ranks_that_do_not_fit_the_nodes_are_refused(sums_model: Path, settings: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        create(_config(sums_model, **settings))
