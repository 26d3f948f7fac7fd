"""`RolloutWorker`: groups in order, bounded concurrency, failures that stay their own."""

import asyncio
from pathlib import Path

from agentloop import AgentLoop, Env, Observation, StopReason
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.rollout.worker import GroupSpec, RolloutWorker

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


def spec(name, n=3, make=Quiz):
    return GroupSpec(name, lambda: make(name), n)


def test_groups_keep_their_order_and_room_is_bounded(renderer, ids_of):
    worker = RolloutWorker(
        AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")], seconds_per_turn=0.005), renderer), max_concurrency=4
    )
    seen = []
    Quiz.most_in_flight = 0
    groups = asyncio.run(worker.run_groups([spec("a"), spec("b"), spec("c")], seen.append))
    assert [group.group_id for group in groups] == ["a", "b", "c"]
    assert [t.trajectory_id for t in groups[1].trajectories] == ["b-0", "b-1", "b-2"]
    assert {t.task["name"] for t in groups[2].trajectories} == {"c"}
    assert len(seen) == 9
    assert Quiz.most_in_flight == 4
    assert Quiz.in_flight == 0


def test_an_environment_that_cannot_be_made_fails_alone(renderer, ids_of):
    def broken(name):
        raise OSError("no such board")

    worker = RolloutWorker(AgentLoop(ScriptedEngine([ids_of("hi<|im_end|>")]), renderer))
    bad, good = asyncio.run(worker.run_groups([spec("bad", 1, broken), spec("good", 1)]))
    assert bad.trajectories[0].stop_reason is StopReason.ENV_ERROR
    assert bad.trajectories[0].failures == {"env": 1}
    assert "no such board" in bad.trajectories[0].error
    assert good.trajectories[0].stop_reason is StopReason.COMPLETED


def test_a_group_may_be_sampled_otherwise(renderer, ids_of):
    asked = []

    def script(trajectory_id, turn, prompt, params):
        asked.append((params.temperature, params.top_p, params.stop_strings))
        return ids_of("hi<|im_end|>")

    engine = ScriptedEngine(script, model=str(MODEL))
    loop = AgentLoop(engine, renderer, temperature=0.8, top_p=0.9, stop_strings=["</answer>"])
    specs = [
        spec("a", 1),
        GroupSpec("b", lambda: Quiz("b"), 1, temperature=0.0),
        GroupSpec("c", lambda: Quiz("c"), 1, top_p=0.5),
        spec("d", 1),
    ]
    for each in specs:
        asyncio.run(RolloutWorker(loop).run_groups([each]))
    assert asked == [(0.8, 0.9, ("</answer>",)), (0.0, 0.9, ("</answer>",)), (0.8, 0.5, ("</answer>",)), asked[0]]
