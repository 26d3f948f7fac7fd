"""`RestartingEngine` over engines that die, hang and fail to start when the test says so."""

import asyncio
from array import array
from types import SimpleNamespace

import pytest
import torch

from agentloop.engines.base import Engine, EngineDead, FinishReason, Generation, SamplingParams
from agentloop.engines.given_up import GivenUp
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.stop_strings import StopFinder
from agentloop.errors import EngineError, UserError
from agentloop.process.restart_budget import RestartBudget
from agentloop.weights.shelf import WeightShelf
from agentloop.weights.tensors import TensorWeights

STOP = 9
PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(STOP,), seed=3)


class Mortal(Engine):
    """Counts up from the last token of the prompt: `quick` tokens, then a stop token; or follows `fate`."""

    max_model_len = 64

    def __init__(self, fate=None, quick=3):
        self.fate, self.quick = fate, quick
        self.policy_version = 0
        self.weights = None
        self.asked = []
        self.paused = self.closed = False
        self.dead = False

    async def start(self):
        if self.fate == "no start":
            raise UserError("no memory")
        if self.fate == "bug":
            raise KeyError("a bug of its library")

    async def generate(self, prompt, params, *, trajectory_id, images=()):
        self.asked.append((list(prompt), params))
        if self.fate == "hang":
            await asyncio.Event().wait()
        if self.dead:
            raise EngineDead("dead")
        ids = [prompt[-1] + 1 + k for k in range(self.quick)]
        if self.fate is None:
            return self.said([*ids, STOP], FinishReason.STOP)
        self.dead = True
        raise EngineDead("killed", self.said(ids[: self.fate], FinishReason.ABORT) if self.fate else None)

    def said(self, ids, reason):
        count = len(ids)
        versions = array("i", [self.policy_version] * count)
        return Generation(array("i", ids), array("f", [-0.5] * count), versions, reason)

    def release(self, trajectory_id):
        pass

    async def pause(self):
        self.paused = True

    async def resume(self):
        self.paused = False

    async def update_weights(self, weights, version):
        if self.dead:
            raise EngineDead("dead")
        self.weights, self.policy_version = dict(weights.tensors()), version

    async def close(self):
        self.closed = True


class Makes:
    """Hands out the engines in order; the last one is the one in use."""

    def __init__(self, *fates):
        self.fates = list(fates)
        self.made = []

    def __call__(self):
        self.made.append(Mortal(self.fates.pop(0)))
        return self.made[-1]


async def started(make, **options):
    engine = RestartingEngine(make, **options)
    await engine.start()
    return engine


async def test_turn_continues_after_the_tokens_of_the_dead_engine():
    make = Makes(2, None)
    engine = await started(make)
    turn = await engine.generate([1, 10], PARAMS, trajectory_id="a")
    assert list(turn.ids) == [11, 12, 13, 14, 15, STOP]
    assert turn.finish_reason is FinishReason.STOP
    dead, living = make.made
    prompt, params = living.asked[0]
    assert prompt == [1, 10, 11, 12]
    assert params.max_tokens == 6
    assert params.seed != PARAMS.seed
    assert dead.closed
    assert engine.restart_counts == {"died": 1}
    await engine.close()


async def test_tokens_keep_their_version_and_the_new_engine_gets_the_latest_weights():
    make = Makes(2, None)
    engine = await started(make)
    weight = torch.ones(2)
    await engine.update_weights(TensorWeights([("w", weight)]), 4)
    weight.fill_(7)  # the learner goes on training
    turn = await engine.generate([10], PARAMS, trajectory_id="a")
    assert set(turn.versions) == {4}
    assert make.made[1].weights["w"].tolist() == [1, 1]
    assert engine.policy_version == make.made[1].policy_version == 4


class Slow(Mortal):
    """Starts on command, and reads shared weights as an engine in another process does."""

    def __init__(self, fate=None):
        super().__init__(fate)
        self.starts = asyncio.Event()
        self.reads = asyncio.Event()
        self.closes = asyncio.Event()

    async def start(self):
        await self.starts.wait()

    async def close(self):
        self.closes.set()

    async def update_weights(self, weights, version):
        mapped = weights.open()
        self.reads.set()
        await asyncio.sleep(0)
        mapped.check()
        await super().update_weights(weights, version)


async def dies_and_restarts(shelf):
    """An engine whose first life ends with version 4 on the shelf, and its second one, which is not started yet."""
    lives = [Slow(2), Slow()]
    waiting = iter(lives)
    engine = RestartingEngine(lambda: next(waiting), budget=RestartBudget(1))
    lives[0].starts.set()
    await engine.start()
    await engine.update_weights(shelf.put([("w", torch.full((2,), 4.0))]), 4)
    turn = asyncio.create_task(engine.generate([10], PARAMS, trajectory_id="a"))
    await lives[0].closes.wait()
    return engine, lives[1], turn


async def test_restart_during_a_publish_takes_the_new_weights():
    shelf = WeightShelf()
    engine, second, turn = await dies_and_restarts(shelf)
    update = asyncio.create_task(engine.update_weights(shelf.put([("w", torch.full((2,), 5.0))]), 5))
    await asyncio.sleep(0)  # it has come, and waits for the engine
    second.starts.set()
    await update
    assert list((await turn).versions) == [4, 4, 5, 5, 5, 5]
    assert second.weights["w"].tolist() == [5, 5]
    assert engine.policy_version == second.policy_version == 5
    assert engine.restart_counts == {"died": 1}
    await engine.close()


async def test_weights_overwritten_during_a_read_wait_for_the_new_ones():
    shelf = WeightShelf()
    engine, second, turn = await dies_and_restarts(shelf)
    second.starts.set()
    await second.reads.wait()
    new = shelf.put([("w", torch.full((2,), 5.0))])
    for _ in range(20):
        await asyncio.sleep(0)
    assert second.weights is None  # neither the old weights nor a mixture
    await engine.update_weights(new, 5)
    assert list((await turn).versions) == [4, 4, 5, 5, 5, 5]
    assert second.weights["w"].tolist() == [5, 5]
    assert engine.restart_counts == {"died": 1}
    await engine.close()


async def test_one_engine_death_costs_one_restart():
    make = Makes(0, None)
    engine = await started(make)
    turns = await asyncio.gather(*(engine.generate([k], PARAMS, trajectory_id=str(k)) for k in (20, 30, 40)))
    assert [list(turn.ids) for turn in turns] == [[k + 1, k + 2, k + 3, STOP] for k in (20, 30, 40)]
    assert len(make.made) == 2


async def test_restart_survives_cancellation_of_the_turn_that_triggered_it():
    make = Makes(0, None)
    engine = await started(make)
    first = asyncio.create_task(engine.generate([20], PARAMS, trajectory_id="a"))
    while not make.made[0].dead:  # noqa: ASYNC110
        await asyncio.sleep(0)
    first.cancel()
    turn = await engine.generate([30], PARAMS, trajectory_id="b")
    assert list(turn.ids) == [31, 32, 33, STOP]


async def test_complete_turn_is_not_resampled_after_engine_death():
    make = Makes(3, None)
    engine = await started(make)
    cut = SamplingParams(max_tokens=3, stop_token_ids=(STOP,))
    turn = await engine.generate([10], cut, trajectory_id="a")
    assert list(turn.ids) == [11, 12, 13]
    assert turn.finish_reason is FinishReason.LENGTH
    assert make.made[1].asked == []


class Letters:
    """A tokenizer in which token 0 is an a, 1 a b, and so on."""

    def decode(self, ids, skip_special_tokens):
        return "".join(chr(ord("a") + token) for token in ids)


@pytest.mark.parametrize("max_tokens", [8, 3])
@pytest.mark.parametrize(("string", "ids"), [("no", [11, 12, 13, 14]), ("n", [11, 12, 13]), ("nope", None)])
async def test_a_stop_string_of_which_each_engine_sampled_a_part_ends_the_turn(string, ids, max_tokens):
    finder = StopFinder(None)
    finder._tokenizer = SimpleNamespace(backend_tokenizer=Letters())
    engine = await started(Makes(2, 1, None), stops=finder)  # l and m; then n; then o and the following letters
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=(STOP,), stop_strings=(string,))
    turn = await engine.generate([10], params, trajectory_id="a")
    if max_tokens == 3:
        ends = string == "n"
        assert (list(turn.ids), turn.finish_reason) == ([11, 12, 13], "stop" if ends else "length")
    else:
        assert list(turn.ids) == (ids or [11, 12, 13, 14, 15, 16, STOP])
        assert len(turn.logprobs) == len(turn.versions) == len(turn.ids)
        assert turn.finish_reason is FinishReason.STOP
    await engine.close()


async def test_hanging_engine_is_replaced():
    make = Makes("hang", None)
    engine = await started(make, stall_seconds=0.05)
    turn = await engine.generate([10], PARAMS, trajectory_id="a")
    assert list(turn.ids) == [11, 12, 13, STOP]
    assert engine.restart_counts == {"hung": 1}
    await engine.close()


async def test_nobody_waits_for_an_engine_that_is_given_up():
    async def too_slow():
        raise TimeoutError("a request of the engine itself")

    given_up = GivenUp()
    with pytest.raises(TimeoutError, match="of the engine itself"):
        await given_up.unless(too_slow())
    waiting = [asyncio.create_task(given_up.unless(asyncio.Event().wait())) for _ in range(3)]
    await asyncio.sleep(0)
    given_up.set()
    given_up.set()
    for turn in [*waiting, given_up.unless(asyncio.Event().wait())]:
        with pytest.raises(EngineDead, match="hangs"):
            await turn


async def test_paused_engine_does_not_count_as_hanging():
    make = Makes("hang")
    engine = await started(make, stall_seconds=0.02)
    await engine.pause()
    turn = asyncio.create_task(engine.generate([10], PARAMS, trajectory_id="a"))
    await asyncio.sleep(0.2)
    assert len(make.made) == 1
    turn.cancel()
    await asyncio.wait([turn])
    await engine.close()


async def test_engine_that_dies_while_paused_restarts_paused():
    make = Makes(None, None)
    engine = await started(make)
    await engine.pause()
    make.made[0].dead = True
    await engine.update_weights(TensorWeights([("w", torch.zeros(1))]), 1)
    assert make.made[1].paused
    assert make.made[1].policy_version == 1


async def test_close_during_a_restart_closes_both_engines_and_fails_the_turns():
    class Slow(Mortal):
        starting = asyncio.Event()

        async def start(self):
            self.starting.set()
            await asyncio.Event().wait()

        async def close(self):
            await asyncio.sleep(0)
            self.closed = True

    old, new = Mortal(fate=0), Slow()
    engines = iter((old, new))
    engine = RestartingEngine(lambda: next(engines))
    await engine.start()
    turn = asyncio.create_task(engine.generate([1], PARAMS, trajectory_id="t"))
    await new.starting.wait()
    await engine.close()
    assert (old.closed, new.closed) == (True, True)
    with pytest.raises(EngineError, match="closed"):
        await turn


async def test_exhausted_restart_budget_fails_all_turns_with_the_reason():
    make = Makes(0, "no start", "no start", "no start")
    engine = await started(make, budget=RestartBudget(2))
    with pytest.raises(EngineError, match=r"too often \(died 1, start 3\); last cause: no memory"):
        await engine.generate([10], PARAMS, trajectory_id="a")
    with pytest.raises(EngineError, match="too often"):
        await engine.generate([10], PARAMS, trajectory_id="b")
    assert all(each.closed for each in make.made)


async def test_an_engine_that_a_stall_ended_may_fail_to_start_with_any_error():
    make = Makes("hang", "bug", "hang", None)
    engine = await started(make, stall_seconds=0.05)
    turn = asyncio.create_task(engine.generate([10], PARAMS, trajectory_id="a"))
    async with asyncio.timeout(20):
        assert list((await turn).ids) == [11, 12, 13, STOP]
    assert engine.restart_counts == {"hung": 2, "start": 1}
    await engine.close()


async def test_other_errors_propagate():
    class Refuses(Mortal):
        async def generate(self, prompt, params, *, trajectory_id, images=()):
            raise EngineError("a prompt of 0 tokens")

    engine = await started(Refuses)
    with pytest.raises(EngineError, match="0 tokens"):
        await engine.generate([], PARAMS, trajectory_id="a")
    assert engine.restart_counts == {}


class Sleeper(Mortal):
    """Records its calls; `fate` is the call that kills it."""

    def __init__(self, fate=None):
        super().__init__(fate)
        self.fate, self.dies_at = None, fate
        self.heard = []

    async def _hear(self, what):
        self.heard.append(what)
        if what[0] == self.dies_at:
            raise EngineDead(f"could not {self.dies_at}")

    async def sleep(self, *, keep_weights=True):
        await self._hear(("sleep", keep_weights))

    async def wake(self):
        await self._hear(("wake",))

    async def pause(self):
        await self._hear(("pause",))

    async def update_weights(self, weights, version):
        await self._hear(("update", version))
        await super().update_weights(weights, version)


def sleepers(*fates):
    made = []

    def make():
        made.append(Sleeper(fates[len(made)]))
        return made[-1]

    return make, made


def weights_of_value(value):
    return TensorWeights([("w", torch.full((2,), float(value)))])


async def test_sleeping_engine_drops_stored_weights_and_reloads_them_on_wake():
    make, made = sleepers(None)
    engine = await started(make)
    for version in (1, 2):
        await engine.sleep()
        await engine.update_weights(weights_of_value(version), version)
        await engine.wake()
    await engine.sleep()
    await engine.sleep()
    await engine.wake()  # nobody had new ones
    await engine.wake()
    assert made[0].heard == [
        *(("sleep", True), ("update", 1), ("wake",)),
        *(("sleep", False), ("update", 2), ("wake",)),
        *(("sleep", False), ("update", 2), ("wake",)),
    ]
    assert made[0].weights["w"].tolist() == [2, 2]
    await engine.close()


@pytest.mark.parametrize("dies_at", ["sleep", "update", "wake", "pause"])
async def test_engine_that_dies_asleep_is_replaced_on_wake_with_the_latest_weights(dies_at):
    make, made = sleepers(dies_at, None)
    engine = await started(make)
    await engine.sleep()
    await engine.update_weights(weights_of_value(5), 5)
    await engine.pause()
    turn = asyncio.create_task(engine.generate([10], PARAMS, trajectory_id="a"))
    await asyncio.sleep(0)
    assert len(made) == 1, "the GPU is not its own"
    await engine.resume()
    await engine.wake()
    assert made[0].closed
    assert set((await turn).versions) == {5}
    assert made[1].weights["w"].tolist() == [5, 5]
    assert made[1].heard == [("update", 5)]
    assert engine.restart_counts == {"died": 1}
    await engine.sleep()
    assert made[1].heard[-1] == ("sleep", False)
    await engine.close()


async def test_turn_of_an_engine_that_dies_asleep_waits_for_the_replacement():
    make, made = sleepers(None, None)
    engine = await started(make)
    await engine.sleep()
    made[0].dead = True
    turn = asyncio.create_task(engine.generate([10], PARAMS, trajectory_id="a"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(made) == 1
    made[0].dies_at = "wake"
    await engine.wake()
    assert (await turn).finish_reason is FinishReason.STOP
    assert len(made) == 2
    await engine.close()


async def test_failed_restart_of_a_sleeping_engine_fails_its_turns():
    make, made = sleepers("wake")
    engine = await started(make, budget=RestartBudget(0))
    await engine.sleep()
    await engine.wake()
    with pytest.raises(EngineError, match=r"failed too often.*could not wake"):
        await engine.generate([10], PARAMS, trajectory_id="a")
    await engine.sleep()
    await engine.wake()
    await engine.close()
    assert made[0].closed
