"""`RecallingEngine` over a scripted engine: what is recalled, what is sampled, what is handed over."""

import pickle

from agentloop.engines.base import SamplingParams
from agentloop.engines.replay import RecallingEngine
from agentloop.engines.testing.scripted import ScriptedEngine

PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(9,))


def engine(*replies):
    """Says the next reply, whoever asks."""
    left = list(replies)
    return RecallingEngine(ScriptedEngine(lambda *_: left.pop(0)))


async def turn(engine, prompt, name="a"):
    return list((await engine.generate(prompt, PARAMS, trajectory_id=name)).ids)


async def test_known_turns_are_recalled_with_their_versions_and_the_next_ones_are_sampled():
    first = engine([1, 9], [2, 9])
    await first.update_weights([], 5)
    assert await turn(first, [7]) == [1, 9]
    assert await turn(first, [7, 1, 9, 8]) == [2, 9]
    known = pickle.loads(pickle.dumps(first.take_new()))
    assert [each.place for each in known] == [0, 1]
    assert first.take_new() == []

    second = engine([3, 9])
    await second.update_weights([], 6)
    second.recall({"a": known})
    recalled = await second.generate([7], PARAMS, trajectory_id="a")
    assert list(recalled.ids) == [1, 9]
    assert list(recalled.versions) == [5, 5]
    assert list(recalled.logprobs) == [-0.5, -0.5]
    assert await turn(second, [7, 1, 9, 8]) == [2, 9]
    assert await turn(second, [7, 1, 9, 8, 2, 9, 8]) == [3, 9]
    assert second.num_recalled == 2
    (new,) = second.take_new()
    assert (new.place, list(new.generation.versions)) == (2, [6, 6])


async def test_a_prompt_that_came_out_otherwise_ends_the_memory_of_its_trajectory():
    first = engine([1, 9], [2, 9])
    await turn(first, [7])
    await turn(first, [7, 1, 9, 8])
    second = engine([3, 9], [4, 9])
    second.recall({"a": first.take_new()})
    assert await turn(second, [7]) == [1, 9]
    assert await turn(second, [7, 1, 9, 80]) == [3, 9]
    assert await turn(second, [7, 1, 9, 80, 3, 9, 8]) == [4, 9]
    assert [new.place for new in second.take_new()] == [1, 2]


async def test_the_length_of_parked_trajectories_counts_until_they_are_released():
    first = engine([1, 9], [2, 9])
    await turn(first, [7, 7, 7], "a")
    await turn(first, [7], "b")
    assert first.resident_tokens == 5 + 3
    first.release("a")
    assert first.resident_tokens == 3


async def test_what_is_forgotten_is_sampled_again():
    first = engine([1, 9])
    await turn(first, [7])
    second = engine([2, 9])
    second.recall({"a": first.take_new()})
    second.forget(["a", "unknown"])
    assert await turn(second, [7]) == [2, 9]
