"""`RestartingEngine` with a `TurnRecord`: which turns are replayed and which are sampled."""

import pickle

from agentloop.engines.base import SamplingParams
from agentloop.engines.episodes import Episode, playing
from agentloop.engines.replay import TurnRecord
from agentloop.engines.restarting import RestartingEngine
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.weights.tensors import TensorWeights

EPISODE = Episode("group", 2)
PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(9,))


def engine(*replies):
    """Return an engine that answers each prompt with the next reply, and its record."""
    left, record = list(replies), TurnRecord()
    return RestartingEngine(lambda: ScriptedEngine(lambda *_: left.pop(0)), turns=record), record


async def turn(engine, prompt, name="a"):
    with playing(EPISODE):
        return list((await engine.generate(prompt, PARAMS, trajectory_id=name)).ids)


async def test_recorded_turns_are_replayed_with_their_versions_and_later_turns_are_sampled():
    first, record = engine([1, 9], [2, 9])
    await first.update_weights(TensorWeights([]), 5)
    assert await turn(first, [7]) == [1, 9]
    assert await turn(first, [7, 1, 9, 8]) == [2, 9]
    known = pickle.loads(pickle.dumps(record.take_new()))
    assert [(each.episode, each.index) for each in known] == [(EPISODE, 0), (EPISODE, 1)]
    assert record.take_new() == []

    second, other = engine([3, 9])
    await second.update_weights(TensorWeights([]), 6)
    other.replay({"a": known})
    recalled = await second.generate([7], PARAMS, trajectory_id="a")
    assert list(recalled.ids) == [1, 9]
    assert list(recalled.versions) == [5, 5]
    assert list(recalled.logprobs) == [-0.5, -0.5]
    assert await turn(second, [7, 1, 9, 8]) == [2, 9]
    assert await turn(second, [7, 1, 9, 8, 2, 9, 8]) == [3, 9]
    assert other.num_replayed == 2
    (new,) = other.take_new()
    assert (new.index, list(new.generation.versions)) == (2, [6, 6])


async def test_changed_prompt_ends_the_replay_of_its_trajectory():
    first, record = engine([1, 9], [2, 9])
    await turn(first, [7])
    await turn(first, [7, 1, 9, 8])
    second, other = engine([3, 9], [4, 9])
    other.replay({"a": record.take_new()})
    assert await turn(second, [7]) == [1, 9]
    assert await turn(second, [7, 1, 9, 80]) == [3, 9]
    assert await turn(second, [7, 1, 9, 80, 3, 9, 8]) == [4, 9]
    assert [new.index for new in other.take_new()] == [1, 2]


async def test_recorded_length_counts_until_release():
    first, record = engine([1, 9], [2, 9])
    await turn(first, [7, 7, 7], "a")
    await turn(first, [7], "b")
    assert record.resident_tokens == 5 + 3
    first.release("a")
    assert record.resident_tokens == 3


async def test_forgotten_turns_are_sampled_again():
    first, record = engine([1, 9])
    await turn(first, [7])
    second, other = engine([2, 9])
    other.replay({"a": record.take_new()})
    other.forget(["a", "unknown"])
    assert await turn(second, [7]) == [2, 9]
