"""`ExportedEnv` passes gymnasium's checker and plays episodes as `AgentLoop` does."""

import asyncio
import warnings
from functools import partial

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from agentloop import AgentLoop, Env, Limits, Observation, StopReason, ToolResult, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.gymnasium.env import GymnasiumEnv
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.episodes.gymnasium_export import ExportedEnv
from agentloop.errors import EnvError
from agentloop.tools.toolset import Toolset

ROWS = [
    {"id": str(n), "messages": [{"role": "user", "content": f"{n} + 1? é"}], "answer": str(n + 1)} for n in range(5)
]


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Echo(Env):
    def __init__(self, row):
        self.task = row

    async def reset(self):
        return Observation([{"role": "user", "content": "hello"}])

    async def step(self, message):
        return Observation([{"role": "user", "content": message["content"]}]), 0.5, False, False


def exported(**options):
    make_env = partial(ToolEnv, toolset=Toolset([add]), reward=load_reward("exact"))
    return ExportedEnv(make_env, ROWS, **options)


@pytest.mark.parametrize("make_env", [partial(ToolEnv, reward=load_reward("exact")), Echo])
def test_passes_the_checker(make_env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(ExportedEnv(make_env, ROWS, max_chars=200), skip_render_check=True)


def test_tools_and_reward():
    env = exported()
    observation, info = env.reset(seed=1, options={"row": 3})
    assert observation == "3 + 1? é"
    assert info["messages"] == ROWS[3]["messages"]
    call = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 1}}</tool_call>'
    observation, reward, terminated, truncated, _ = env.step(call)
    assert (observation, reward, terminated, truncated) == ("4", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("4")
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, "completed")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("4")


def test_calls_that_cannot_be_used_are_feedback():
    env = exported()
    env.reset(seed=1)
    assert "no tool 'ad'" in env.step('<tool_call>{"name": "ad", "arguments": {}}</tool_call>')[0]
    assert env.step("<tool_call>{</tool_call>")[0]


def test_turns_are_limited():
    env = ExportedEnv(Echo, ROWS, max_turns=2)
    env.reset(seed=1)
    assert env.step("a")[1:4] == (0.5, False, False)
    observation, reward, terminated, truncated, info = env.step("b")
    assert (observation, reward, terminated, truncated, info["stop_reason"]) == ("b", 0.5, False, True, "max_turns")


def test_the_seed_chooses_the_row():
    env = exported()
    assert {env.reset(seed=seed)[0] for seed in range(40)} == {row["messages"][0]["content"] for row in ROWS}
    assert env.reset(seed=5)[0] == env.reset(seed=5)[0]


def test_an_exported_game_is_the_game():
    lake = {"id": "FrozenLake-v1", "options": {"is_slippery": False, "max_episode_steps": 3}}
    env = ExportedEnv(partial(GymnasiumEnv, **lake), ROWS)
    env.reset(seed=1)
    move = '<tool_call>{{"name": "act", "arguments": {{"action": {}}}}}</tool_call>'.format
    assert env.step(move(1))[0] == "4"
    assert env.step(move(1))[0] == "8"
    assert env.step(move(1))[2:4] == (True, False)  # a hole, at the time limit
    env.reset(seed=1)
    outcomes = [env.step(move(0))[2:4] for _ in range(3)]
    assert outcomes == [(False, False), (False, False), (False, True)]
    env.close()


def test_an_environment_that_fails():
    class Broken(Echo):
        async def step(self, message):
            raise EnvError("boom")

    env = ExportedEnv(Broken, ROWS)
    env.reset(seed=1)
    with pytest.raises(EnvError, match="boom"):
        env.step("a")


@tool
async def fail(ctx) -> ToolResult:
    """End the episode as a failure."""
    return ToolResult("the disk is full", is_error=True, stop=StopReason.ENV_ERROR)


class Quiz(Echo):
    """Rewards each answer and the whole episode; the answer "end" ends it."""

    def __init__(self, row):
        super().__init__(row)
        self.toolset = Toolset([add, fail])

    async def step(self, message):
        observation, reward, _, truncated = await super().step(message)
        return observation, reward, message["content"] == "end", truncated

    async def score(self, trajectory):
        return 2.0 + len(trajectory.messages)


def call(name, arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


ADD = call("add", '{"a": 3, "b": 1}')
MALFORMED = "<tool_call>{</tool_call>"
MAX_PARALLEL_CALLS = Limits().max_parallel_calls


@pytest.mark.parametrize(
    ("turns", "stop_reason", "num_model_failures"),
    [
        (["a", ADD, "<think>so</think>end"], "completed", 0),
        ([MALFORMED, ADD, "end"], "completed", 1),
        ([call("no_such_tool"), call("add", '{"a": "x"}'), "end"], "completed", 2),
        (["two" + ADD + MALFORMED, "end"], "completed", 1),
        ([ADD * (MAX_PARALLEL_CALLS + 2), "end"], "completed", 2),
        ([MALFORMED] * 3, "invalid_calls", 3),
        (["a", "b", "c", "d"], "max_turns", 0),
    ],
)
def test_plays_as_the_loop_does(turns, stop_reason, num_model_failures, renderer, ids_of):
    engine = ScriptedEngine([ids_of(turn + "<|im_end|>") for turn in turns])
    loop = AgentLoop(engine, renderer, limits=Limits(max_turns=4))
    trajectory = asyncio.run(loop.run(Quiz(ROWS[0])))

    env = ExportedEnv(Quiz, ROWS, max_turns=4)
    _, info = env.reset(seed=1, options={"row": 0})
    answers, rewards, stopped = info["messages"], [], False
    for turn in turns:
        assert not stopped
        _, reward, terminated, truncated, info = env.step(turn)
        answers += info["messages"]
        rewards.append(reward)
        stopped = terminated or truncated

    assert info["stop_reason"] == trajectory.stop_reason == stop_reason
    assert answers == [message for message in trajectory.messages if message["role"] != "assistant"]
    assert rewards[:-1] == trajectory.turn_rewards[:-1]
    assert sum(rewards) == trajectory.reward
    assert info["failures"] == trajectory.failures
    assert trajectory.failures.get("model", 0) == num_model_failures


def test_raises_the_error_that_the_loop_records(renderer, ids_of):
    turn = call("fail") + ADD
    loop = AgentLoop(ScriptedEngine([ids_of(turn + "<|im_end|>")]), renderer)
    trajectory = asyncio.run(loop.run(Quiz(ROWS[0])))
    env = ExportedEnv(Quiz, ROWS)
    env.reset(seed=1)
    with pytest.raises(EnvError) as raised:
        env.step(turn)
    assert str(raised.value) == trajectory.error == "the disk is full"


def test_closes_the_environment_of_an_unfinished_episode():
    closed = []

    class Closing(Echo):
        async def close(self):
            closed.append(self.task["id"])

    env = ExportedEnv(Closing, ROWS)
    env.reset(options={"row": 2})
    env.step("a")
    env.reset(options={"row": 3})
    env.close()
    assert closed == ["2", "3"]
