"""Environments of a user that fail: their own episode ends, counted, and nothing waits for them."""

import time
from pathlib import Path

import pytest

from agentloop import StopReason
from agentloop.envs.gymnasium.env import GymnasiumEnv
from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object

ROW = {"id": "a", "messages": [{"role": "user", "content": "Play."}]}
HERE = f"{Path(__file__).with_name('broken_games.py')}:"
Broken = load_object(HERE + "Broken", "environment")


def broken(**options):
    return GymnasiumEnv(ROW, id=HERE + "Broken", **options)


@pytest.mark.parametrize("actions", ["tool", "text"])
@pytest.mark.parametrize(
    ("action", "words"), [("raise", "RuntimeError: boom"), ("next", "StopIteration"), ("nan", "the reward nan")]
)
def test_raising_environment_ends_its_episode(play, actions, action, words):
    turn = {"action": action} if actions == "tool" else action
    trajectory = play(broken(actions=actions), [turn])
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.ENV_ERROR, None)
    assert words in trajectory.error
    assert trajectory.failures["env"] == 1


def test_hanging_environment_is_abandoned_and_closed_on_return(play):
    Broken.release.clear()
    Broken.closed.clear()
    env = broken(step_timeout=0.3)  # also sees the spaces, for which one is made and closed
    Broken.closed.clear()
    started = time.monotonic()
    trajectory = play(env, [{"action": "hang"}])
    assert time.monotonic() - started < 10
    assert trajectory.stop_reason is StopReason.ENV_ERROR
    assert "longer than 0.3 s" in trajectory.error
    assert Broken.closed == []
    Broken.release.set()
    deadline = time.monotonic() + 10
    while not Broken.closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Broken.closed == ["closed"]


def test_episode_timeout_abandons_a_hanging_environment(play):
    Broken.release.clear()
    trajectory = play(broken(), [{"action": "hang"}], max_seconds=0.5)
    Broken.release.set()
    assert trajectory.stop_reason is StopReason.MAX_SECONDS


def test_user_functions_render_and_parse(play):
    env = broken(actions="text", observe=HERE + "shout", read_action=HERE + "first_word")
    trajectory = play(env, ["one two", ""], max_turns=2)
    told = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert told == ["Play.\n\nOPTIONS NONE!", "ONE!", "say something"]
    assert trajectory.reward == 0.5


def test_pattern_extracts_the_action(play):
    env = broken(actions="text", action_pattern="<action>(.*?)</action>")
    trajectory = play(env, ["<action>a</action> no: <action>bc</action>", "a"], max_turns=2)
    told = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert told[1] == "bc"
    assert "<action>" in told[2]


def test_row_options_reach_reset(play):
    env = GymnasiumEnv({**ROW, "reset_options": {"level": 2}}, id=HERE + "Broken")
    assert "options {'level': 2}" in play(env, [{"action": "x"}], max_turns=1).messages[0]["content"]


@pytest.mark.parametrize(
    ("name", "words"), [("NoActions", "ActionWrapper"), ("Unmade", "no display"), ("shout", "shout")]
)
def test_invalid_options_raise_user_error(name, words):
    with pytest.raises(UserError, match=words):
        GymnasiumEnv(ROW, id=HERE + name)
