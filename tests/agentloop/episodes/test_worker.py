"""`RolloutWorker`: groups in order, bounded concurrency, failures that stay their own."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from agentloop import AgentLoop, Env, Observation, StopReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.episodes.worker import RolloutWorker
from agentloop.types.requests import RolloutRequest, Sampling

MODEL = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
"""Has the tokenizer of these tests."""


class Quiz(Env):
    in_flight = 0
    most_in_flight = 0

    def __init__(self, name):
        self.task = {"name": name}

    async def reset(self):
        Quiz.in_flight += 1
        Quiz.most_in_flight = max(Quiz.most_in_flight, Quiz.in_flight)
        await asyncio.sleep(0.005)
        return Observation([{"role": "user", "content": self.task["name"]}])

    async def step(self, message):
        return Observation(), 0.0, True, False

    async def close(self):
        Quiz.in_flight -= 1


class Prepared(Quiz):
    """Counts environments that are prepared and not closed yet."""

    prepared: ClassVar = []
    most_waiting = 0

    def prepare(self):
        Prepared.prepared.append(self)
        waiting = sum(not each.is_playing for each in Prepared.prepared)
        Prepared.most_waiting = max(Prepared.most_waiting, waiting)

    is_playing = False

    async def reset(self):
        self.is_playing = True
        return await super().reset()

    async def close(self):
        if self.is_playing:
            await super().close()
        if self in Prepared.prepared:
            Prepared.prepared.remove(self)


def request(name, n=3, sampling=None):
    return RolloutRequest(group_id=name, row=0, n=n, seed=0, sampling=sampling)


def quiz_of(request):
    return Quiz(request.group_id)


async def play_all(worker, requests, on_trajectory=None):
    return await asyncio.gather(*(worker.play(each, on_trajectory) for each in requests))


def test_groups_keep_their_order_and_room_is_bounded(renderer, ids_of):
    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    worker = RolloutWorker(loop, quiz_of, max_concurrency=4)
    seen = []
    Quiz.most_in_flight = 0
    groups = asyncio.run(play_all(worker, [request("a"), request("b"), request("c")], seen.append))
    assert [group.request.group_id for group in groups] == ["a", "b", "c"]
    assert [t.trajectory_id for t in groups[1].trajectories] == ["b-0", "b-1", "b-2"]
    assert [t.place for t in groups[1].trajectories] == [0, 1, 2]
    assert {t.task["name"] for t in groups[2].trajectories} == {"c"}
    assert len(seen) == 9
    assert Quiz.most_in_flight == 4
    assert Quiz.in_flight == 0


def test_only_the_requested_episodes_are_played_under_their_names(renderer, ids_of):
    worker = RolloutWorker(AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")]), renderer), quiz_of)
    group = asyncio.run(worker.play(replace(request("a", n=4), places=(1, 3))))
    assert [(t.trajectory_id, t.place) for t in group.trajectories] == [("a-1", 1), ("a-3", 3)]


def test_an_environment_that_cannot_be_made_fails_alone(renderer, ids_of):
    def make_env(request):
        if request.group_id == "bad":
            raise OSError("no such board")
        return quiz_of(request)

    worker = RolloutWorker(AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")]), renderer), make_env)
    bad, good = asyncio.run(play_all(worker, [request("bad", 1), request("good", 1)]))
    assert bad.trajectories[0].stop_reason is StopReason.ENV_ERROR
    assert bad.trajectories[0].failures == {"env": 1}
    assert "no such board" in bad.trajectories[0].error
    assert good.trajectories[0].stop_reason is StopReason.COMPLETED


class Cancelling(Quiz):
    """Cancels the task of its episode."""

    async def step(self, message):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)


def test_an_episode_whose_code_cancels_its_task_fails_alone(renderer, ids_of):
    def make_env(request):
        return (Cancelling if request.group_id == "bad" else Quiz)(request.group_id)

    seen = []
    worker = RolloutWorker(AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")]), renderer), make_env)
    bad, good = asyncio.run(play_all(worker, [request("bad", 2), request("good", 1)], seen.append))
    assert [each.failures for each in bad.trajectories] == [{"env": 1}, {"env": 1}]
    assert "cancelled the task of its episode" in bad.trajectories[0].error
    assert good.trajectories[0].stop_reason is StopReason.COMPLETED
    assert sorted(each.trajectory_id for each in seen) == ["bad-0", "bad-1", "good-0"]


def test_a_request_may_be_sampled_differently(renderer, ids_of):
    seen = []

    def script(trajectory_id, turn, prompt, params):
        seen.append((params.temperature, params.top_p, params.stop_strings))
        return ids_of("hi<|im_end|>")

    sampling = Sampling(temperature=0.8, top_p=0.9, stop_strings=("</answer>",))
    loop = AgentLoop(ScriptedEngine(script, model=str(MODEL)), renderer, sampling=sampling)
    for own in (None, replace(sampling, temperature=0.0), Sampling(top_p=0.5), None):
        asyncio.run(RolloutWorker(loop, quiz_of).play(request("a", 1, sampling=own)))
    assert seen == [(0.8, 0.9, ("</answer>",)), (0.0, 0.9, ("</answer>",)), (1.0, 0.5, ()), seen[0]]


def prepared_of(request):
    return Prepared(request.group_id)


def test_environments_of_the_next_episodes_are_prepared_while_others_play(renderer, ids_of):
    Prepared.prepared, Prepared.most_waiting, Quiz.most_in_flight = [], 0, 0
    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    worker = RolloutWorker(loop, prepared_of, max_concurrency=2, prepare_ahead=3)
    groups = asyncio.run(play_all(worker, [request("a", n=6), request("b", n=6)]))
    assert [t.stop_reason for group in groups for t in group.trajectories] == [StopReason.COMPLETED] * 12
    assert Prepared.most_waiting == 3
    assert Quiz.most_in_flight == 2
    assert Prepared.prepared == []


def test_prepared_environments_are_closed_when_a_group_is_cancelled(renderer, ids_of):
    async def cancel():
        worker = RolloutWorker(loop, prepared_of, max_concurrency=1, prepare_ahead=2)
        playing = asyncio.ensure_future(worker.play(request("a", n=8)))
        while len(Prepared.prepared) < 2:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        assert playing.cancelled()
        assert Prepared.prepared == []
        return await worker.play(request("b", n=2))

    Prepared.prepared = []
    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    assert [t.stop_reason for t in asyncio.run(cancel()).trajectories] == [StopReason.COMPLETED] * 2
    assert Quiz.in_flight == 0


@pytest.mark.parametrize("error", [ValueError("no such quiz"), SystemExit("no such quiz")])
def test_an_environment_that_cannot_be_made_early_fails_its_own_episode(renderer, ids_of, error):
    made = []

    def make(request):
        made.append(request.group_id)
        if request.group_id == "bad":
            raise error
        return Prepared(request.group_id)

    Prepared.prepared = []
    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    worker = RolloutWorker(loop, make, max_concurrency=1, prepare_ahead=1)
    good, bad = asyncio.run(play_all(worker, [request("good", n=1), request("bad", n=1)]))
    assert good.trajectories[0].stop_reason is StopReason.COMPLETED
    assert f"the environment cannot be created: {type(error).__name__}: no such quiz" in bad.trajectories[0].error
    assert made == ["good", "bad", "bad"]


def test_an_environment_whose_prepare_raises_is_played(renderer, ids_of, caplog):
    class Unprepared(Quiz):
        def prepare(self):
            raise ValueError("no machine")

    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    worker = RolloutWorker(loop, lambda each: Unprepared(each.group_id), max_concurrency=1, prepare_ahead=1)
    group = asyncio.run(worker.play(request("a", n=3)))
    assert [t.stop_reason for t in group.trajectories] == [StopReason.COMPLETED] * 3
    assert caplog.text.count("The method prepare of Unprepared raised ValueError: no machine") == 1


def test_an_environment_that_cannot_be_closed_does_not_hide_the_cancellation_of_its_group(renderer, ids_of):
    class Unclosed(Prepared):
        async def close(self):
            await super().close()
            raise ValueError("no machine")

    async def cancel():
        worker = RolloutWorker(loop, lambda each: Unclosed(each.group_id), max_concurrency=1, prepare_ahead=1)
        playing = asyncio.ensure_future(worker.play(request("a", n=3)))
        while not Prepared.prepared:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait([playing])
        return playing.cancelled()

    Prepared.prepared = []
    loop = AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer)
    assert asyncio.run(cancel())
    assert Prepared.prepared == []
