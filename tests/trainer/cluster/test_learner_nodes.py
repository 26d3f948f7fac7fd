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
from agentloop.trainer.cluster import shared_files
from agentloop.trainer.cluster.learner_ranks import LearnerRanks
from agentloop.trainer.cluster.rank_actor import Objects
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.learner.protocol import Learner
from agentloop.trainer.learner.ranked_learner import OwningLearner
from agentloop.trainer.run.learners import create
from tests.support.processes import write_pid
from tests.support.tiny import random_batch as _random_batch

pytestmark = [pytest.mark.usefixtures("two_nodes"), pytest.mark.slow]


@pytest.fixture(scope="module")
def two_nodes(warm_ray: None) -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1, num_gpus=1)
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
    """Return the results of two steps, of a third, and of the third again from a checkpoint."""
    found = [learner.step(_batch(seed))[name] for seed in (0, 1) for name in ("loss", "grad_norm")]
    learner.save(tmp_path)
    found.append(learner.step(_batch(2))["loss"])
    learner.load(tmp_path)
    found.append(learner.step(_batch(2))["loss"])
    assert found[-1] == found[-2]
    found += [float(value) for part in learner.logprobs(_batch(3).samples) for value in part]
    learner.close()
    return found


def test_two_ranks_on_two_nodes_are_those_of_one_node_bit_for_bit(sums_model: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # ranks of one node would have fewer threads, which round otherwise
    spread = create(_config(sums_model))
    spread_numbers = _trained(spread, tmp_path / "spread")
    together = _trained(create(_config(sums_model, nodes=1)), tmp_path / "together")
    assert spread_numbers == together


def test_nodes_that_hold_a_whole_copy_each_train_as_if_they_divided_one(sums_model: Path, tmp_path: Path):
    numbers = {}
    for shard in ("node", "all"):
        learner = create(_config(sums_model, shard=shard))
        numbers[shard] = _trained(learner, tmp_path / shard)
    assert numbers["node"] == pytest.approx(numbers["all"], rel=1e-5)


def test_a_rank_of_another_node_that_dies_is_named_with_its_node(sums_model: Path, tmp_path: Path):
    learner = create(_config(sums_model))
    assert isinstance(learner, OwningLearner)
    learner.ranks.run(write_pid, tmp_path / "pid")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(UserError, match=r"rank 1 of 2 died on node \S+: .*last checkpoint"):
        learner.step(_batch(0))
    learner.close()


def _write_node(objects: Objects, file: Path) -> None:
    if dist.get_rank() == 1:
        file.write_text(f"{ray.get_runtime_context().get_node_id()} {os.environ.get('CUDA_VISIBLE_DEVICES')}")


def _meet(objects: Objects) -> None:
    dist.barrier()


def test_models_and_folders_that_a_node_does_not_see_are_refused(sums_model: Path, tmp_path: Path, monkeypatch):
    ranks = LearnerRanks(2, "cpu", 2)
    shared_files.check(ranks, sums_model, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shared_files, "digest", lambda model: "another")
    with pytest.raises(UserError, match=rf"model is {sums_model}, but .* has another config.json there"):
        shared_files.check(ranks, sums_model, None)
    monkeypatch.undo()
    monkeypatch.setattr(Path, "touch", lambda path: None)  # as if only this node had written it
    with pytest.raises(UserError, match=rf"run folder is {tmp_path}, but \S+, a node of the learner, does not.*NFS"):
        shared_files.check(ranks, sums_model, tmp_path, seconds=0.0)
    ranks.close()


def test_each_rank_has_a_gpu_of_the_reservation_on_its_node(two_nodes: Cluster, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reservation = GpuReservation.take(2, num_gpus=1)
    here, there = reservation.nodes
    assert here.node_id == ray.get_runtime_context().get_node_id()
    assert ray.available_resources().get("GPU", 0) == 0
    reservation.show_first_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    ranks = LearnerRanks(2, "cpu", 2, reservation)  # GPUs are numbers to Ray: nothing uses them
    ranks.run(_write_node, tmp_path / "rank")
    assert (tmp_path / "rank").read_text() == f"{there.node_id} 0"
    ranks.close()
    reservation.release()


def test_a_node_that_is_lost_is_named(two_nodes: Cluster, tmp_path: Path):
    ranks = LearnerRanks(2, "cpu", 2)
    two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)
    with pytest.raises(UserError, match=r"rank 1 of 2 (was lost with its|died on) node \S+: "):
        ranks.run(_meet)
    ranks.close()
    two_nodes.add_node(num_cpus=1, num_gpus=1)
    two_nodes.wait_for_nodes()


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
