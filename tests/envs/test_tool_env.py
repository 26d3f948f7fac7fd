import threading

import pytest

from agentloop.envs.base import Env, Observation
from agentloop.envs.rewards import load_reward
from agentloop.envs.tool_env import ToolEnv
from agentloop.types.trajectory import Trajectory

ROW = {"id": "0", "messages": [{"role": "user", "content": "6 * 7?"}], "answer": "42"}


async def test_episode_shows_the_row_and_ends_with_the_first_answer():
    env = ToolEnv(ROW, reward=load_reward("exact"))
    assert list((await env.reset()).messages) == ROW["messages"]
    observation, reward, terminated, truncated = await env.step({"role": "assistant", "content": "42"})
    assert (list(observation.messages), reward, terminated, truncated) == ([], 0.0, True, False)


class Blocking(Env):
    """Written without async."""

    def reset(self):
        return Observation([{"role": "user", "content": threading.current_thread().name}])

    def step(self, message):
        return Observation(), 1.0, True, False

    def score(self, trajectory):
        return 0.5

    def close(self):
        self.closed_in = threading.current_thread().name


async def test_sync_methods_run_in_threads():
    env = Blocking()
    assert (await env.reset()).messages[0]["content"].startswith("agentloop-tool")
    assert (await env.step({"role": "assistant", "content": "42"}))[1] == 1.0
    assert await env.score(Trajectory()) == 0.5
    await env.close()
    assert env.closed_in.startswith("agentloop-tool")


async def test_score_calls_the_reward_with_the_row():
    env = ToolEnv(ROW, reward=load_reward("exact"))
    assert await env.score(Trajectory(messages=[{"role": "assistant", "content": "42"}])) == 1.0
    assert await env.score(Trajectory(messages=[{"role": "assistant", "content": "41"}])) == 0.0


async def test_score_propagates_reward_errors():
    env = ToolEnv({**ROW, "answer": "no number"}, reward=load_reward("last_number"))
    with pytest.raises(ValueError, match="has no number"):
        await env.score(Trajectory())


async def test_outcome_without_reward_scores_zero():
    assert await ToolEnv(ROW).score(Trajectory()) == 0.0
