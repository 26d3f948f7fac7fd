"""Episodes on a server of the real openenv package; it makes at most two environments at once."""

import asyncio
import time

import pytest

from agentloop import StopReason
from agentloop.envs.openenv.connection import Connection
from agentloop.envs.openenv.env import OpenEnv
from agentloop.envs.rewards import load_reward
from agentloop.errors import EnvError, UserError

ROW = {"id": "a", "seed": 4, "messages": [{"role": "user", "content": "Play."}]}
NUMBER = 3  # of seed 4


def told(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] in ("tool", "user")]


def test_episode_is_played_by_tool_calls(play, url):
    env = OpenEnv(ROW, url=url)
    (schema,) = env.toolset.schemas
    assert set(schema["function"]["parameters"]["properties"]) == {"number", "note"}
    trajectory = play(env, [{"number": 5}, {"number": 1, "note": "unscored"}, {"number": NUMBER}])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.turn_rewards == [-0.1, 0.0, 1.0]
    assert trajectory.reward == pytest.approx(0.9)
    assert told(trajectory) == [
        "Play.\n\nhint: Guess a number from 0 to 9.\nguesses: 0",
        "hint: lower\nguesses: 1",
        "hint: higher\nguesses: 2",
        "hint: right\nguesses: 3",
    ]


def test_seed_and_row_options_reach_reset(play, url):
    for _ in range(2):
        assert play(OpenEnv(ROW, url=url), [{"number": NUMBER}]).reward == 1.0
    row = {**ROW, "reset_options": {"highest": 0}}
    trajectory = play(OpenEnv(row, url=url, observation_field="hint"), [{"number": 0}])
    assert trajectory.reward == 1.0
    assert told(trajectory)[0] == "Play.\n\nGuess a number from 0 to 0."


def test_moves_may_be_text(play, url):
    trajectory = play(OpenEnv(ROW, url=url, actions="text"), ["five", "5", str(NUMBER)])
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.COMPLETED, pytest.approx(0.9))
    assert trajectory.failures == {"model": 1}
    assert "number: 'five' is not of type 'integer'" in told(trajectory)[1]
    env = OpenEnv(ROW, url=url, actions="text", text_field="note")
    assert "'number' is a required property" in told(play(env, ["5"], max_turns=1))[1]


def test_rejected_actions_give_feedback_and_the_session_continues(play, url):
    trajectory = play(OpenEnv(ROW, url=url), [{"number": 13}, {"number": "x"}, {"number": NUMBER}])
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert trajectory.failures == {"model": 2}
    assert "number: 13 is unlucky" in told(trajectory)[1]
    assert "number" in told(trajectory)[2]


def test_missing_reward_is_unscored(play, url):
    turns = [{"number": 1, "note": "unscored"}]
    trajectory = play(OpenEnv(ROW, url=url), turns, max_turns=1)
    assert trajectory.reward is None
    assert trajectory.failures["judge"] == 1
    judged = play(OpenEnv({**ROW, "answer": ""}, url=url, reward=load_reward("exact")), turns, max_turns=1)
    assert judged.reward == 1.0  # the final text is empty, as the answer is


def test_raising_environment_ends_its_episode(play, url):
    trajectory = play(OpenEnv(ROW, url=url), [{"number": 1, "note": "raise"}])
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.ENV_ERROR, None)
    assert trajectory.error == "the server reports EXECUTION_ERROR: boom"
    assert trajectory.failures["env"] == 1


def test_missing_response_times_out(play, url):
    started = time.monotonic()
    trajectory = play(OpenEnv(ROW, url=url, step_timeout=1.0), [{"number": 1, "note": "sleep"}])
    assert time.monotonic() - started < 4
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "longer than 1 s to step" in trajectory.error


async def test_session_errors_are_reported(url):
    """Beyond its capacity the server says so; an ended session makes room."""
    address = url.replace("http", "ws") + "/ws"
    sessions = [Connection(address, timeout=10) for _ in range(2)]

    async def opened(session):
        async with asyncio.timeout(20):
            while True:  # the one that sleeps above may still have its place
                await session.open()
                try:
                    return await session.reset({"seed": 1})
                except EnvError:
                    await session.close()
                    await asyncio.sleep(0.2)

    for session in sessions:
        assert (await opened(session)).observation["guesses"] == 0
    third = Connection(address, timeout=10)
    await third.open()
    with pytest.raises(EnvError, match="CAPACITY_REACHED"):
        await third.reset({})
    with pytest.raises(EnvError, match="EXECUTION_ERROR"):
        await sessions[0].reset({"highest": "x"})
    for session in [*sessions, third]:
        await session.close()
        await session.close()
    with pytest.raises(EnvError, match="lost"):
        await sessions[0].step({"number": 1})


@pytest.mark.slow
def test_unreachable_server_raises():
    with pytest.raises(UserError, match="no OpenEnv server at"):
        OpenEnv(ROW, url="http://127.0.0.1:9")
    with pytest.raises(UserError, match="http://host:port"):
        OpenEnv(ROW, url="127.0.0.1:8000")


def test_options_that_do_not_fit_the_server_raise(url):
    with pytest.raises(UserError, match="Did you mean 'number'"):
        OpenEnv(ROW, url=url, actions="text", text_field="nubmer")
