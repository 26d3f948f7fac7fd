"""Turns that other workers sample, over engines that go when the test says so."""

import asyncio
from array import array

import pytest

from agentloop.engines.base import EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.handing_over import HandingOverEngine, Helpers, with_most_room
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.testing.scripted import ScriptedEngine

STOP = 9
PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(STOP,))


class Other:
    """A helper that says its number, or goes in the middle of the turn."""

    def __init__(self, number, goes=False):
        self.number, self.goes = number, goes
        self.asked, self.released = [], []

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        self.asked.append((trajectory_id, list(prompt)))
        if self.goes:
            raise EngineDead("gone")
        return said(self.number, version=self.number)

    def release(self, trajectory_id):
        self.released.append(trajectory_id)


def said(number, version):
    return Generation(array("i", [number, STOP]), array("f", [-0.1] * 2), array("i", [version] * 2), FinishReason.STOP)


def worker(*helpers, room=2, draining=True):
    engine = HandingOverEngine(ScriptedEngine([[1, STOP]]), Helpers())
    engine.helpers.offer(dict.fromkeys(helpers, room))
    engine.is_draining = draining
    return engine


async def ask(engine, name, prompt=(5,)):
    turn = await engine.generate(list(prompt), PARAMS, trajectory_id=name)
    return turn.ids[0]


def test_the_next_trajectory_goes_where_most_room_is_and_nowhere_without():
    assert with_most_room({"a": 1, "b": 3, "c": 3}) == "b"
    assert with_most_room({"a": 0, "b": 0}) is None
    assert with_most_room({}) is None


async def test_turns_stay_here_until_the_worker_is_drained():
    engine = worker(Other(2), draining=False)
    assert await ask(engine, "x") == 1
    engine.is_draining = True
    assert await ask(engine, "x") == 2


async def test_the_turn_has_what_the_helper_sampled_with_its_versions():
    engine = worker(other := Other(7))
    turn = await engine.generate([3, 4], PARAMS, trajectory_id="x")
    assert turn == said(7, version=7)
    assert other.asked == [("x", [3, 4])]
    assert engine.helpers.num_turns == 1


async def test_a_trajectory_stays_with_its_helper_and_takes_room_until_it_is_released():
    engine = worker(first := Other(2), second := Other(3), room=1)
    assert await ask(engine, "x") == 2
    assert await ask(engine, "y") == 3
    assert await ask(engine, "x") == 2, "its prefix is there"
    assert await ask(engine, "z") == 1, "no room is left: here"
    engine.release("x")
    assert (first.released, second.released) == (["x"], [])


async def test_a_helper_that_is_offered_again_keeps_its_trajectories_and_one_that_is_not_loses_them():
    engine = worker(first := Other(2))
    await ask(engine, "x")
    engine.helpers.offer({first: 0, (second := Other(3)): 5})
    assert await ask(engine, "x") == 2
    assert await ask(engine, "y") == 3
    engine.helpers.offer({second: 1})
    assert await ask(engine, "x") == 3


async def test_a_turn_whose_helper_goes_is_sampled_by_the_next_one_and_then_here():
    engine = worker(Other(2, goes=True), last := Other(3, goes=True))
    assert await ask(engine, "x", [5, 6]) == 1
    assert last.asked == [("x", [5, 6])], "all of the turn, behind the same tokens"
    assert engine.helpers.num_turns == 0
    assert await ask(engine, "y") == 1
    assert len(last.asked) == 1, "nobody asks it again"


async def test_whoever_waits_for_a_helper_hears_when_one_has_room():
    helpers = Helpers()
    waiting = asyncio.create_task(helpers.come())
    helpers.offer({Other(2): 0})
    await asyncio.sleep(0)
    assert not waiting.done()
    helpers.offer({Other(2): 1})
    await waiting
    helpers.offer({})
    with pytest.raises(EngineDead, match="no other worker has room"):
        await helpers.generate([5], PARAMS, trajectory_id="x")


class Dying(ScriptedEngine):
    """Ends in its first turn, two tokens after its beginning; what follows it starts when the test says so."""

    def __init__(self, ready):
        super().__init__([[1, STOP]])
        self.ready, self.dies = ready, not ready

    async def start(self):
        for event in self.ready:
            await event.wait()

    async def generate(self, prompt, params, **rest):
        if self.dies:
            raise EngineDead("killed", said(6, version=0))
        return await super().generate(prompt, params, **rest)


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_others_sample_the_turns_of_an_engine_that_is_being_replaced():
    back, helpers = asyncio.Event(), Helpers()
    engines = iter([Dying([]), Dying([back])])
    engine = RestartingEngine(lambda: next(engines), helpers=helpers)
    await engine.start()
    params = SamplingParams(max_tokens=8, stop_token_ids=(3,), seed=1)
    turn = asyncio.create_task(engine.generate([5], params, trajectory_id="x"))
    await until(lambda: engine.is_being_replaced)
    helpers.offer({(gone := Other(2, goes=True)): 1})
    await until(lambda: gone.asked)
    helpers.offer({(other := Other(3)): 1})
    assert list((await turn).ids) == [6, STOP, 3, STOP], "behind the tokens of the dead engine"
    assert list((await turn).versions) == [0, 0, 3, 3]
    assert gone.asked == other.asked == [("x", [5, 6, STOP])]
    assert engine.is_being_replaced
    back.set()
    await until(lambda: not engine.is_being_replaced)
    assert (await engine.generate([5], params, trajectory_id="x")).ids[0] == 1
    await engine.close()
