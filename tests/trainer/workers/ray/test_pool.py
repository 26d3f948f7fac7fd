"""`RayWorkers` with real actors that are killed, stopped and held up."""

import asyncio
import logging
import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from agentloop.config.learner import LearnerConfig
from agentloop.config.resolved import Facts, resolve
from agentloop.config.workers import WorkersConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError
from agentloop.trainer.cluster.reservation import GpuReservation
from agentloop.trainer.cluster.session import connect
from agentloop.trainer.run.learners import create
from agentloop.trainer.run.workers import make_workers
from agentloop.trainer.schedule.failures import is_failed
from agentloop.trainer.workers.local import LocalWorkers
from agentloop.trainer.workers.ray.pool import RayWorkers
from agentloop.trainer.workers.requests import make_requests, play_all
from agentloop.types.requests import Sampling
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.usefixtures("ray"), pytest.mark.slow]


async def started(config) -> RayWorkers:
    config = config.replace(workers=config.workers.replace(kind="ray"))
    workers = make_workers(resolve(config, Facts(model=Path(config.model))), None)
    await workers.start()
    return workers


def said(groups):
    """Return everything that must not depend on the worker that played."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return [
        (t.trajectory_id, t.group_id, t.token_ids.tolist(), t.logprobs.tolist(), t.loss_mask.tolist(), t.reward)
        for t in trajectories
    ]


def workers_of(workers):
    return [slot.worker for slot in workers.slots if slot.worker is not None]


async def until(condition, playing=None):
    """Poll, because other processes do not notify a test. Raises the error that ended `playing`."""
    while not condition():
        if playing is not None and playing.done():
            playing.result()
        await asyncio.sleep(0.02)


async def test_every_request_is_answered_once_although_workers_are_killed_at_random(steady):
    config = steady("engine.options.seconds_per_turn=0.1", "engine.max_concurrency=8")
    config = config.replace(workers=config.workers.replace(kind="ray", count=2))
    orders = make_requests("x", [place % 10 for place in range(24)], n=4, seed=0)
    model = Path(config.model)
    alone = LocalWorkers(episodes := RolloutSetup.load(config, model), make_engine_of(config))
    await alone.start()
    expected = said(await play_all(alone, orders))
    await alone.close()
    assert len(expected) == 96
    assert len(episodes.train) == 10

    workers = await started(config)
    seen = []
    chance = random.Random(0)

    async def kill():
        for share in (8, 32, 60):
            await until(lambda share=share: len(seen) >= share and workers_of(workers))
            os.kill(chance.choice(workers_of(workers)).pid, signal.SIGKILL)
            await until(lambda before=workers.failures["died"]: workers.failures["died"] > before or len(seen) == 96)

    killing = asyncio.create_task(kill())
    groups = await play_all(workers, orders, lambda trajectory: seen.append(trajectory.trajectory_id))
    await killing
    assert said(groups) == expected
    assert sorted(seen) == sorted(name for name, *_ in expected), "each trajectory was shown once"
    assert workers.failures["died"] >= 2
    await workers.close()


def make_engine_of(config):
    from agentloop.episodes.setup import make_engine

    return make_engine(resolve(config, Facts(model=Path(config.model))))


async def test_replayed_turns_are_not_sampled_again(steady, sums):
    workers = await started(steady())
    (sums / "gate").touch()  # all calls of the tool wait
    (order,) = make_requests("x", [3], n=4, seed=1)
    playing = asyncio.create_task(workers.play(order))
    await until(lambda: workers_of(workers)[0].requests, playing)
    (opened,) = workers_of(workers)[0].requests
    await until(lambda: opened.missing and len(opened.turns) == len(opened.missing), playing)
    handed_over = len(opened.missing)
    assert 0 < handed_over < 4, "some call the tool, some do not"
    sampled = (sums / "log").read_text().splitlines()
    killed = workers_of(workers)[0].pid
    os.kill(killed, signal.SIGKILL)
    (sums / "gate").unlink()
    group = await playing
    again = (sums / "log").read_text().splitlines()[len(sampled) :]
    assert len(again) == handed_over, "the second turns only"
    assert not set(again) & set(sampled)
    await until(lambda: workers.metrics().get("workers/recalled_turns") == handed_over)
    assert [t.num_turns for t in group.trajectories].count(2) == handed_over
    assert [t.metrics["worker_pid"] == killed for t in group.trajectories].count(True) == 4 - handed_over
    await workers.close()


async def test_a_worker_whose_loop_stands_still_is_named_and_replaced(steady, sums, caplog):
    config = steady("workers.hang_seconds=10")
    workers = await started(config)
    (sums / "stuck").touch()
    (order,) = make_requests("x", [3], n=4, seed=1)
    with caplog.at_level(logging.WARNING):
        playing = asyncio.create_task(workers.play(order))
        await until(lambda: workers.failures["hung"], playing)
        (sums / "stuck").unlink()
        assert len((await playing).trajectories) == 4
    message = next(record.getMessage() for record in caplog.records if "hung" in record.getMessage())
    assert "its event loop has been blocked" in message
    assert "steady.py" in message
    await workers.close()


async def test_a_process_that_is_stopped_is_replaced_and_ended(steady):
    workers = await started(steady("workers.hang_seconds=10", "engine.options.seconds_per_turn=1"))
    stopped = workers_of(workers)[0].pid
    orders = make_requests("x", range(3), n=4, seed=1)
    playing = asyncio.create_task(play_all(workers, orders))
    await until(lambda: workers_of(workers)[0].requests)
    os.kill(stopped, signal.SIGSTOP)
    assert len(await playing) == 3
    assert workers.failures["hung"] >= 1
    await until(lambda: has_ended(stopped))
    await workers.close()


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_a_request_that_kills_its_workers_is_given_up_and_the_others_are_played(steady, sums):
    config = steady("workers.max_replays=1")
    workers = await started(config)
    (sums / "deadly").touch()
    (bad,) = make_requests("bad", [0], n=2, seed=0)
    orders = make_requests("good", range(2), n=2, seed=0)
    played = await asyncio.gather(workers.play(bad), *(workers.play(order) for order in orders))
    assert all(is_failed(t) for t in played[0].trajectories)
    error = played[0].trajectories[0].error
    assert "2 workers died while they played it" in error
    assert error.endswith("that ends its process, such as os._exit.")  # and not advice about the engine
    assert played[0].trajectories[0].failures == {"engine": 1}
    assert len(played) == 3
    (sums / "deadly").unlink()
    (after,) = await play_all(workers, make_requests("after", [1], n=2, seed=0))
    assert not any(is_failed(t) for t in after.trajectories)
    await workers.close()


async def test_weights_reach_every_worker_and_those_that_are_started_later(sums, sums_model):
    from transformers import AutoModelForCausalLM

    from agentloop.config.loading import load_config
    from agentloop.config.run import RunConfig

    config = load_config(
        RunConfig,
        sums / "config.yaml",
        [
            "engine={name: hf, options: {device: cpu, max_model_len: 512}}",
            "limits={max_turns: 1, max_turn_tokens: 12, max_tokens: 512}",
            "workers={kind: ray, count: 2}",
            "engine.max_concurrency=4",
        ],
    )
    model = AutoModelForCausalLM.from_pretrained(sums_model)
    model.lm_head.weight.data = model.lm_head.weight.data.flip(0).clone()
    weights = [(name, tensor) for name, tensor in model.named_parameters()]
    orders = make_requests("x", range(4), n=4, seed=0, sampling=Sampling(temperature=0.0))

    workers = await started(config)
    old = said(await play_all(workers, orders))
    await workers.pause()
    first, second = workers_of(workers)
    first.maps = False  # as on another node: by broadcast
    await workers.update_weights(TensorWeights(weights), 7)
    assert (first.maps, second.maps) == (False, True)
    assert workers.distributor.broadcast_group == (first,)
    await workers.resume()
    assert workers.policy_version == 7
    new = await play_all(workers, orders)
    assert {int(v) for group in new for t in group.trajectories for v in t.versions[t.loss_mask]} == {7}
    assert said(new) != old
    os.kill(workers_of(workers)[0].pid, signal.SIGKILL)
    await until(lambda: workers.failures["died"] == 1)
    await until(lambda: len(workers_of(workers)) == 2)
    # Each of the two has room for one group: both must play.
    again = await play_all(workers, orders)
    assert [t.token_ids.tolist() for g in again for t in g.trajectories] == [
        t.token_ids.tolist() for g in new for t in g.trajectories
    ]
    assert {int(v) for group in again for t in group.trajectories for v in t.versions[t.loss_mask]} == {7}
    # A worker that ends during a broadcast delays no other; its replacement gets the weights, too.
    first, second = workers_of(workers)
    first.maps = second.maps = False
    os.kill(second.pid, signal.SIGSTOP)
    updating = asyncio.create_task(workers.update_weights(TensorWeights(weights), 8))
    await until(lambda: len(workers.distributor.broadcast_group) == 2, updating)
    os.kill(second.pid, signal.SIGKILL)
    await updating
    assert not first.is_lost
    await until(lambda: len(workers_of(workers)) == 2)
    last = await play_all(workers, orders)
    assert {int(v) for group in last for t in group.trajectories for v in t.versions[t.loss_mask]} == {8}
    # A learner of two ranks has parts of the weights in two processes: mapped by one worker, sent to the other.
    learner = create(LearnerConfig(model=str(sums_model), device="cpu", compute_dtype="float32", ranks=2))
    await learner.publish(workers, 9)
    assert len(workers.published.shared.parts) == 2
    before = await play_all(workers, orders)
    assert [t.token_ids.tolist() for g in before for t in g.trajectories] == [ids for _, _, ids, *_ in old]
    learner.close()
    await workers.close()


async def test_a_model_that_cannot_be_loaded_is_one_clear_error(steady, tmp_path):
    config = steady("engine={name: hf, options: {device: cpu, max_model_len: 99999}}")
    with pytest.raises(UserError, match="max_model_len=99999 exceeds the"):
        await started(config)


async def test_more_workers_than_cpus_are_refused(steady):
    with pytest.raises(UserError, match=r"workers\.count is 99 and each worker needs 1 CPUs.*Set workers\.count=4"):
        await started(steady("workers={kind: ray, count: 99}"))


async def test_aborted_requests_free_their_room(steady, sums):
    workers = await started(steady("engine.max_concurrency=4"))
    (sums / "gate").touch()
    playing = [asyncio.create_task(workers.play(order)) for order in make_requests("x", range(3), n=4, seed=1)]
    await until(lambda: workers_of(workers)[0].requests)
    assert workers.room() == 0
    for task in playing:
        task.cancel()
    await asyncio.wait(playing)
    assert workers.room() == 4
    (sums / "gate").unlink()
    assert len(await play_all(workers, make_requests("y", range(2), n=4, seed=1))) == 2
    await workers.close()


async def test_the_learners_gpus_are_kept_from_the_workers(ray):
    config = WorkersConfig(kind="ray", count=2)
    connect(config, gpus=1, reserved=2)
    with pytest.raises(UserError, match="room for 1"):
        connect(config, gpus=2, reserved=2)
    with pytest.raises(UserError, match="learner needs 5 GPUs on this node, but Ray may assign only 4 of them"):
        connect(config, gpus=0, reserved=5)
    reservation = GpuReservation.take(1, num_gpus=3)
    assert reservation.first_gpu in {"0", "1", "2", "3"}
    await until(lambda: ray.available_resources().get("GPU") == 1)
    reservation.release()


async def test_a_warning_of_the_workers_is_shown_once(steady, sums, caplog):
    config = steady()
    code = (sums / "steady.py").read_text()
    (sums / "steady.py").write_text(code.replace("return str(a + b)", "raise KeyError('no such key 7')"))
    workers = await started(config.replace(workers=config.workers.replace(kind="ray", count=2)))
    await play_all(workers, make_requests("x", range(8), n=4, seed=0))
    await until(lambda: "no such key" in caplog.text)
    await workers.close()
    shown = [record.getMessage() for record in caplog.records if "no such key" in record.getMessage()]
    assert len(shown) == 1
    assert "The tool 'add' raised an error" in shown[0]
    assert "steady.py" in shown[0]
