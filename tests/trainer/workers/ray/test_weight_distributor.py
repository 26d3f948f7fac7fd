"""`WeightDistributor` with workers that receive in threads of this process; test_ray.py has actors."""

import asyncio
import logging

import pytest
import torch

from agentloop.config.workers import WorkersConfig
from agentloop.trainer.workers.ray.weight_distributor import WeightDistributor
from agentloop.trainer.workers.ray.worker import WorkerLost
from agentloop.weights import broadcast
from agentloop.weights.broadcast import BroadcastFailed, BroadcastWeights
from agentloop.weights.shelf import CannotMap, SharedWeights, WeightShelf
from agentloop.weights.tensors import TensorWeights

pytestmark = pytest.mark.slow


class Worker:
    """A worker like `RayWorker`, without an actor."""

    has_gpu = False
    address = "127.0.0.1"

    def __init__(self, near=True):
        self.is_of_this_node, self.maps, self.is_lost = near, True, False
        self.got = []
        """(transport, version, weights) of each update."""
        self.rendezvous = []
        """Rendezvous of each broadcast."""
        self.refuses = None
        self._shelf = WeightShelf()

    async def update_weights(self, weights, version):
        way = WAYS[type(weights)]
        assert way != "mapped" or (self.maps and self.is_of_this_node), "it cannot map them"
        if isinstance(self.refuses, WorkerLost):
            self.is_lost = True
        if self.refuses is not None and self.refuses_way(way):
            raise self.refuses
        if way == "broadcast":
            self.rendezvous.append(weights.rendezvous)
        shared = await asyncio.to_thread(weights.shared, self._shelf)
        self.got.append((way, version, {name: tensor.tolist() for name, tensor in shared.tensors()}))

    def refuses_way(self, way):
        return way == {CannotMap: "mapped", BroadcastFailed: "broadcast"}.get(type(self.refuses), way)

    def stop_receiving(self, rendezvous):
        broadcast.leave(rendezvous)


class Store(TensorWeights):
    """Stands for the object store."""


class Published:
    def __init__(self, shared, version):
        self.shared, self.version = shared, version

    async def objects(self):
        return Store(self.shared.tensors())


WAYS = {SharedWeights: "mapped", BroadcastWeights: "broadcast", Store: "store"}


@pytest.fixture
def publish():
    shelf = WeightShelf()

    def put(version):
        return Published(shelf.put([("w", torch.full((5,), float(version)))]), version)

    return put


def made(**options):
    return WeightDistributor(WorkersConfig(kind="ray", hang_seconds=120, **options))


async def test_workers_of_this_host_map_and_the_others_share_a_broadcast(publish):
    distributor = made()
    near, far, other = Worker(), Worker(near=False), Worker(near=False)
    for version in range(3):
        await distributor.bring(publish(version), [near, far, other])
    expected = [(version, {"w": [float(version)] * 5}) for version in range(3)]
    assert near.got == [("mapped", *each) for each in expected]
    assert far.got == other.got == [("broadcast", *each) for each in expected]
    await distributor.bring(publish(3), [far, other])
    assert far.rendezvous == [far.rendezvous[0]] * 4, "the group is made once"
    assert distributor.metrics() == {"workers/weights_mapped": 3, "workers/weights_broadcast": 8}
    distributor.close()


async def test_one_that_cannot_map_gets_a_broadcast_from_then_on(publish, caplog):
    distributor, near, blind = made(), Worker(), Worker()
    blind.refuses = CannotMap("another user's process")
    with caplog.at_level(logging.WARNING):
        await distributor.bring(publish(0), [near, blind])
    assert "another user's process" in caplog.text
    await distributor.bring(publish(1), [near, blind])
    assert [way for way, *_ in near.got] == ["mapped"] * 2
    assert [way for way, *_ in blind.got] == ["broadcast"] * 2
    distributor.close()


async def test_a_worker_that_is_lost_in_a_broadcast_holds_nobody_up(publish):
    distributor = made()
    lost, *others = workers = [Worker(near=False) for _ in range(3)]
    lost.refuses = WorkerLost("died", "killed")
    await distributor.bring(publish(0), workers)
    assert [worker.got for worker in others] == [[("broadcast", 0, {"w": [0.0] * 5})]] * 2
    assert not lost.got
    late = Worker(near=False)
    await distributor.bring(publish(0), [late])
    await distributor.bring(publish(1), [*others, late])
    assert [way for worker in [*others, late] for way, *_ in worker.got] == ["broadcast"] * 6
    distributor.close()


async def test_the_object_store_takes_over_if_no_broadcast_arrives(publish, caplog):
    distributor, one, other = made(), Worker(near=False), Worker(near=False)
    one.refuses = BroadcastFailed("no route")
    with caplog.at_level(logging.WARNING):
        await distributor.bring(publish(0), [one, other])
    assert one.got == other.got == [("store", 0, {"w": [0.0] * 5})]
    assert "through Ray's object store from now on" in caplog.text
    await distributor.bring(publish(1), [one])
    assert one.got[1:] == [("store", 1, {"w": [1.0] * 5})]


@pytest.mark.parametrize(("weights", "way"), [("auto", "mapped"), ("broadcast", "broadcast"), ("objects", "store")])
async def test_a_transport_can_be_chosen(publish, weights, way):
    distributor, worker = made(weights=weights), Worker()
    await distributor.bring(publish(0), [worker])
    assert [found for found, *_ in worker.got] == [way]
    distributor.close()


async def test_an_error_of_an_engine_is_raised(publish):
    distributor, worker = made(weights="broadcast"), Worker()

    worker.refuses = ValueError("another model")
    with pytest.raises(ValueError, match="another model"):
        await distributor.bring(publish(0), [worker])
    distributor.close()
