"""A server of the real package ors-sdk, in an interpreter of its own."""

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import play_script
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.ors.env import OpenReward, tasks
from agentloop.envs.ors.session import Output, Refused, Session, read_events, read_output
from agentloop.errors import EnvError, UserError

SERVER = str(Path(__file__).with_name("server.py"))


@pytest.fixture(scope="module")
def python(python_with):
    return python_with("ors-sdk-0.1.0", "ors-sdk==0.1.0")


@pytest.fixture(scope="module")
def rows(python, running_server):
    with running_server([python, SERVER]) as url:
        yield load_dataset("agentloop.envs.ors.env:tasks", options={"url": url}, needs_prompt=False)


def call(name, /, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def seen(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


def test_rows_are_the_tasks_of_a_split(rows):
    url = rows[0]["environment"]["url"]
    assert [row["task_spec"] for row in rows] == [{"number": number, "below": 20} for number in range(20)]
    assert rows[3]["id"] == "guessing-train-3"
    part = list(tasks(url, environment="Guessing", split="test", first=1, size=5))
    assert [row["id"] for row in part] == ["guessing-test-1", "guessing-test-2"]


GUESSES = [call("hint"), call("guess", number=4), call("guess", number=3), "never said"]


@pytest.mark.parametrize(("outcome", "reward"), [("sum", 1.95), ("last", 1.0)])
def test_an_episode_ends_when_the_environment_says_so(rows, outcome, reward):
    trajectory = play_script(OpenReward(rows[3], outcome=outcome), GUESSES)
    assert seen(trajectory) == ["odd", "wrong", "right"]
    assert (trajectory.stop_reason, trajectory.reward, trajectory.error) == ("completed", pytest.approx(reward), None)
    assert trajectory.messages[0] == {"role": "user", "content": "Guess my number below 20."}


def test_a_turn_without_a_call_ends_the_episode(rows):
    trajectory = play_script(OpenReward(rows[3]), [call("guess", number=13), "I give up."])
    assert (trajectory.stop_reason, trajectory.reward) == ("completed", 0.5)


def test_an_episode_whose_calls_are_not_scored_has_no_reward(rows):
    trajectory = play_script(OpenReward(rows[3]), [call("hint"), "I give up."])
    assert (trajectory.reward, trajectory.failures) == (None, {"judge": 1})
    assert "no call of the episode was rewarded" in trajectory.error


async def test_long_answers_arrive_whole(rows):
    session = Session(rows[3]["environment"]["url"], "guessing", seconds=30)
    await session.create(rows[3]["task_spec"])
    assert (await session.call("talk", {"count": 4000})).blocks == [
        {"text": "  é" * 4000, "detail": None, "type": "text"}
    ]
    with pytest.raises(Refused, match="'nothing' is not a valid tool"):
        await session.call("nothing", {})
    await session.close()


def test_pictures_are_seen(rows):
    text, image = seen(play_script(OpenReward(rows[3]), [call("look"), call("guess", number=3)]))[0]
    assert text == {"type": "text", "text": "Look:"}
    assert image["image"].size == (28, 28)


@pytest.mark.parametrize(
    ("number", "turn", "options", "says"),
    [
        (3, call("fail"), {}, "the tool fail of guessing failed: the tool is broken"),
        (3, call("hang"), {"step_timeout": 1.0}, "took too long for /guessing/call"),
        (13, "", {}, "thirteen cannot be set up"),
    ],
)
def test_an_environment_that_fails_is_a_failed_episode(rows, number, turn, options, says):
    trajectory = play_script(OpenReward(rows[number], **options), [turn])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert says in trajectory.error


def test_a_server_that_dies_fails_its_episodes(python, running_server):
    with running_server([python, SERVER]) as url:
        row = next(tasks(url))
        trajectory = play_script(OpenReward(row), [call("die")])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert "does not answer /guessing/call" in trajectory.error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "tran"}, r"guessing has no split 'tran'\. Did you mean 'train'"),
        ({"environment": "guesing"}, "Set `environment` .* to one of guessing.* Did you mean 'guessing'"),
        ({"first": -1}, "must be at least 0"),
    ],
)
def test_unusable_options_are_named(rows, options, says):
    with pytest.raises(UserError, match=says):
        list(tasks(rows[0]["environment"]["url"], **options))


@pytest.mark.slow
def test_an_address_without_a_server_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UserError, match="did not answer /list_environments according to the Open Reward Standard"):
            next(tasks(url))


def test_rows_of_other_sources_are_refused():
    with pytest.raises(UserError, match="is not a task of a server: use the rows of"):
        OpenReward({"id": "7", "messages": []})


def stream(parts):
    return "".join(f"event: {event}\r\ndata: {data}\r\n\r\n" for event, data in parts)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])), st.integers(1, 7))
def test_the_parts_of_an_answer_are_joined_unchanged(text, length):
    parts = [text[start : start + length] for start in range(0, len(text), length)] or [""]
    kinds = [*["chunk"] * (len(parts) - 1), "end"]
    sent = stream([("task_id", "a"), *zip(kinds, parts, strict=True)])
    events = list(read_events(": ping\r\n\r\n" + sent))
    assert events[0] == ("task_id", "a")
    assert "".join(data for _, data in events[1:]) == text


def test_results_are_read_or_refused():
    scored = {"blocks": [], "metadata": None, "reward": 1, "finished": True}
    assert read_output(json.dumps({"ok": True, "output": scored})) == Output([], 1.0, True)
    assert read_output(json.dumps({"ok": True, "output": {**scored, "reward": None}})).reward is None
    with pytest.raises(Refused, match="no such tool"):
        read_output('{"ok": false, "error": "no such tool"}')
    for wrong in ("", "[]", '{"ok": true}', '{"ok": true, "output": {"blocks": 3}}'):
        with pytest.raises(EnvError):
            read_output(wrong)
    for reward in ("NaN", "Infinity", '"1"'):
        with pytest.raises(EnvError, match="not a finite number"):
            read_output('{"ok": true, "output": {"blocks": [], "reward": REWARD}}'.replace("REWARD", reward))
