"""`WeightDistributor` with workers that receive in threads of this process; test_ray.py has actors."""

import asyncio
import logging

import pytest
import torch

from agentloop.config.workers import WorkersConfig
from agentloop.trainer.workers.ray.weight_distributor import WeightDistributor
from agentloop.trainer.workers.ray.worker import WorkerLost
from agentloop.weights.broadcast import BroadcastFailed, Receiver
from agentloop.weights.shelf import CannotMap, WeightShelf


class Call:
    def __init__(self, run):
        self.remote = run


class Worker:
    """As `RayWorker`, without an actor."""

    has_gpu = False

    def __init__(self, near=True):
        self.is_of_this_node, self.maps, self.is_lost = near, True, False
        self.got = []
        """(way, version, weights) of each update."""
        self.refuses = None
        self._receiver = Receiver("127.0.0.1")
        self.actor = self
        self.stop_receiving = Call(self._receiver.leave)

    async def ask(self, method, *args):
        return await getattr(self, method)(*args)

    async def update_weights(self, weights, version):
        if isinstance(weights, str):
            self.got.append(("store", version, weights))
        elif not self.maps or not self.is_of_this_node:
            raise AssertionError("it cannot map them")
        elif self.refuses is not None:
            raise self.refuses
        else:
            self.got.append(("mapped", version, values(weights)))

    async def receive_weights(self, meeting, rank, places, version):
        if isinstance(self.refuses, WorkerLost):
            self.is_lost = True
            raise self.refuses
        if isinstance(self.refuses, BroadcastFailed):
            raise self.refuses
        shared = await asyncio.to_thread(self._receiver.receive, meeting, rank, places)
        self.got.append(("broadcast", version, values(shared)))


class Published:
    def __init__(self, shared, version):
        self.shared, self.version = shared, version

    async def references(self):
        return "references"


def values(weights):
    return {name: tensor.tolist() for name, tensor in weights}


@pytest.fixture
def publish():
    shelf = WeightShelf()

    def put(version):
        return Published(shelf.put([("w", torch.full((5,), float(version)))]), version)

    return put


def made(**options):
    return WeightDistributor(WorkersConfig(kind="ray", hang_seconds=120, **options))


async def test_workers_of_this_host_map_and_the_others_share_a_broadcast(publish):
    courier = made()
    near, far, other = Worker(), Worker(near=False), Worker(near=False)
    for version in range(3):
        await courier.bring(publish(version), [near, far, other])
    expected = [(version, {"w": [float(version)] * 5}) for version in range(3)]
    assert near.got == [("mapped", *each) for each in expected]
    assert far.got == other.got == [("broadcast", *each) for each in expected]
    group = courier._group
    await courier.bring(publish(3), [far, other])
    assert courier._group is group, "it is made once"
    assert courier.metrics() == {"workers/weights_mapped": 3, "workers/weights_broadcast": 8}
    courier.close()


async def test_one_that_cannot_map_gets_a_broadcast_from_then_on(publish, caplog):
    courier, near, blind = made(), Worker(), Worker()
    blind.refuses = CannotMap("another user's process")
    with caplog.at_level(logging.WARNING):
        await courier.bring(publish(0), [near, blind])
    assert "another user's process" in caplog.text
    await courier.bring(publish(1), [near, blind])
    assert [way for way, *_ in near.got] == ["mapped"] * 2
    assert [way for way, *_ in blind.got] == ["broadcast"] * 2
    courier.close()


async def test_a_worker_that_is_lost_in_a_broadcast_holds_nobody_up(publish):
    courier = made()
    lost, *others = workers = [Worker(near=False) for _ in range(3)]
    lost.refuses = WorkerLost("died", "killed")
    await courier.bring(publish(0), workers)
    assert [worker.got for worker in others] == [[("broadcast", 0, {"w": [0.0] * 5})]] * 2
    assert not lost.got
    late = Worker(near=False)
    await courier.bring(publish(0), [late])
    await courier.bring(publish(1), [*others, late])
    assert [way for worker in [*others, late] for way, *_ in worker.got] == ["broadcast"] * 6
    courier.close()


async def test_where_no_broadcast_gets_through_the_object_store_takes_over(publish, caplog):
    courier, one, other = made(), Worker(near=False), Worker(near=False)
    one.refuses = BroadcastFailed("no route")
    with caplog.at_level(logging.WARNING):
        await courier.bring(publish(0), [one, other])
    assert one.got == other.got == [("store", 0, "references")]
    assert "through Ray's object store from now on" in caplog.text
    await courier.bring(publish(1), [one])
    assert one.got[1:] == [("store", 1, "references")]


@pytest.mark.parametrize(("weights", "way"), [("auto", "mapped"), ("broadcast", "broadcast"), ("objects", "store")])
async def test_a_way_can_be_asked_for(publish, weights, way):
    courier, worker = made(weights=weights), Worker()
    await courier.bring(publish(0), [worker])
    assert [found for found, *_ in worker.got] == [way]
    courier.close()


async def test_what_an_engine_refuses_is_raised(publish):
    courier, worker = made(weights="broadcast"), Worker()

    async def refuse(*args):
        raise ValueError("another model")

    worker.receive_weights = refuse
    with pytest.raises(ValueError, match="another model"):
        await courier.bring(publish(0), [worker])
    courier.close()
