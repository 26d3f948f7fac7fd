"""The real package, in the interpreter that `agentloop envs install nemo_gym` makes."""

import asyncio
import json
from copy import deepcopy
from functools import cache
from pathlib import Path

import psutil
import pytest

from agentloop import AgentLoop, Limits, play_script
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.nemo_gym.env import NemoGym, program, tasks
from agentloop.envs.workers.pool import close_pools, pool_of
from agentloop.episodes.text_renderer import END, TextRenderer
from agentloop.errors import UserError

RECORDED = [
    "arc_agi",
    "calendar",
    "example_multi_step",
    "example_multi_turn_gymnasium",
    "example_session_state_mgmt",
    "example_single_tool_call",
    "example_tool_call_multireward",
    "mcqa",
    "mrcr",
]
"""Servers that need no model and no network, and whose recorded rollouts have what their judges read."""


@pytest.fixture(scope="module")
def rows_of(installed_env):
    installed_env("nemo_gym")

    @cache
    def made(**options):
        return load_dataset("agentloop.envs.nemo_gym.env:tasks", options=options, needs_prompt=False)

    return lambda **options: deepcopy(made(**options))


def call(name, /, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def prompt(item):
    given = item["responses_create_params"]["input"]
    return given if isinstance(given, str) else str([message["content"] for message in given])


def said(recorded):
    """The turns of the model in a recorded response."""
    turns, is_open = [], False
    for item in recorded["output"]:
        is_ours = item["type"] == "function_call" or item.get("role") == "assistant"
        if is_ours and not is_open:
            turns.append("")
        is_open = is_ours
        if item["type"] == "function_call":
            turns[-1] += call(item["name"], **json.loads(item["arguments"]))
        elif is_ours:
            turns[-1] += "".join(part["text"] for part in item["content"])
    return turns


def play_all(rows, turns, **options):
    """Play all rows at the same time; the model says `turns[number]` in the episode of that number."""

    def script(name, turn, prompt, params):
        return [*map(ord, turns[int(name.partition("-")[0])][turn]), END]

    async def played():
        loop = AgentLoop(
            ScriptedEngine(script, max_model_len=1 << 20), TextRenderer(), limits=Limits(max_tokens=1 << 20)
        )
        games = (loop.run(NemoGym(row, **options), trajectory_id=f"{number}-x") for number, row in enumerate(rows))
        try:
            return await asyncio.gather(*games)
        finally:
            close_pools()

    return asyncio.run(played())


@pytest.mark.parametrize("server", RECORDED)
def test_recorded_rollouts_get_their_recorded_rewards_again(rows_of, server):
    recorded = [row["item"] for row in rows_of(server=server, file="example_rollouts.jsonl")]
    asked = {prompt(row["item"]): row for row in rows_of(server=server)}  # a rollout may lack what its item says
    rows = [asked[prompt(each)] for each in recorded]
    found = play_all(rows, [said(each["response"]) for each in recorded])
    assert [each.error for each in found] == [None] * len(rows)
    assert [each.reward for each in found] == [each["reward"] for each in recorded]
    assert len(rows) >= 5


def test_the_published_solutions_of_workplace_tasks_get_1(rows_of):
    rows = rows_of(server="workplace_assistant")
    solved = [[*(call(each["name"], **json.loads(each["arguments"])) for each in truth(row)), "Done."] for row in rows]
    found = play_all(rows * 2, [*solved, *[["Done."]] * 5])
    assert [each.reward for each in found] == [1.0] * 5 + [0.0] * 5


def truth(row):
    return row["item"]["ground_truth"]


def test_calls_of_a_tool_server_keep_the_state_of_their_episode(rows_of):
    rows = rows_of(server="example_session_state_mgmt")
    assert rows[0]["item"]["expected_count"] == 6  # from 3
    refused = [call("increment_counter", count="x") + call("verify", reward=1.0), "Done."]
    right = [call("increment_counter", count=1) + call("increment_counter", count=2), "Done."]
    wrong = [call("increment_counter", count=1), call("get_counter_value"), "Done."]
    found = play_all([rows[0]] * 5, [right, wrong, right, wrong, refused])
    assert [each.reward for each in found] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert answers(found[1]) == ['{"success":true}', '{"count":4}']
    assert "Input should be a valid integer" in answers(found[4])[0]
    assert answers(found[4])[1] == '{"error": "there is no such tool"}'
    assert found[4].error is None


def answers(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("options", "limits", "reason", "turns"),
    [({"max_steps": 2}, {}, "completed", 2), ({}, {"max_turns": 2}, "max_turns", 2)],
)
def test_an_episode_that_is_ended_early_is_judged_by_what_was_done(rows_of, options, limits, reason, turns):
    row = rows_of(server="example_session_state_mgmt")[0]
    increments = [call("increment_counter", count=1), call("increment_counter", count=2), "Done."]
    trajectory = play_script(NemoGym(row, **options), increments, **limits)
    assert (trajectory.stop_reason, trajectory.reward, trajectory.metrics["turns"]) == (reason, 1.0, turns)


def test_a_judge_that_fails_or_needs_a_model_is_a_failed_episode(rows_of):
    row = rows_of(server="example_session_state_mgmt")[0]
    del row["item"]["expected_count"]
    trajectory = play_script(NemoGym(row), ["Done."])
    assert (trajectory.reward, trajectory.failures) == (None, {"judge": 1})
    assert "422" in trajectory.error
    assert "expected_count" in trajectory.error


async def test_a_server_that_dies_fails_its_episodes_only(rows_of):
    row = rows_of(server="example_session_state_mgmt")[0]
    others = set(psutil.Process().children())
    turns = 0

    def script(name, turn, prompt, params):
        nonlocal turns
        turns += 1
        if turns == 2:
            (worker,) = set(psutil.Process().children()) - others
            worker.kill()
        return [*map(ord, call("get_counter_value")), END]

    engine = ScriptedEngine(script, max_model_len=1 << 20)
    loop = AgentLoop(engine, TextRenderer(), limits=Limits(max_turns=4, max_tokens=1 << 20))
    try:
        died = await loop.run(NemoGym(row), trajectory_id="0")
        after = await loop.run(NemoGym(row), trajectory_id="1")
    finally:
        close_pools()
    assert (died.stop_reason, died.reward, died.failures) == ("env_error", None, {"env": 1})
    assert "does not answer /get_counter_value" in died.error
    assert (after.stop_reason, after.reward) == ("max_turns", 0.0)


def test_a_server_that_runs_elsewhere_is_used_at_its_address(rows_of, tmp_path):
    row = rows_of(server="example_multi_turn_gymnasium")[0]
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps(row["item"]) + "\n")

    async def played():
        pool = pool_of(program(**row["environment"]))
        try:
            async with pool.episode({}, seconds=60) as server:
                (own,) = tasks(str(file), url=server.first)
                engine = ScriptedEngine([[*map(ord, each), END] for each in TURNS], max_model_len=1 << 20)
                loop = AgentLoop(engine, TextRenderer(), limits=Limits(max_tokens=1 << 20))
                return await loop.run(NemoGym(own), trajectory_id="0")
        finally:
            close_pools()

    trajectory = asyncio.run(played())
    assert (trajectory.reward, trajectory.metrics["turns"], trajectory.error) == (1.0, 3, None)


TURNS = ["Paris.", "Two million.", "The Eiffel tower."]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"server": "workplace"}, "NeMo Gym has no server 'workplace'; it has aalcr, abstention, a"),
        ({"server": "arc_agi", "file": "train.jsonl"}, "arc_agi has no train.jsonl; its files: example.jsonl"),
    ],
)
def test_what_the_package_does_not_have_is_named(rows_of, options, says):
    with pytest.raises(UserError, match=says):
        rows_of(**options)


def test_a_field_that_the_configuration_does_not_have_is_refused(rows_of):
    with pytest.raises(UserError, match=r"mcqa has no grading in its configuration; it has host, port, .*grading_mode"):
        next(tasks(server="mcqa", config={"grading": "strict"}))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "set either `server` .* or `url`"),
        ({"server": "x", "url": "http://x"}, "set either"),
        ({"url": "http://x"}, "set `file`"),
        ({"url": "http://x", "file": "nowhere.jsonl"}, "nowhere.jsonl is not one"),
        ({"url": "http://x", "file": __file__}, "is not one: correct `file`"),
        ({"server": "x", "size": 0}, "must be at least 1"),
    ],
)
def test_impossible_options_are_refused_without_the_package(options, says):
    with pytest.raises(UserError, match=says):
        next(tasks(**options))


def test_items_without_a_request_are_refused(tmp_path):
    file = Path(tmp_path, "items.jsonl")
    file.write_text('{"prompt": "hello"}\n')
    with pytest.raises(UserError, match=r"Item 0 of .* has no responses_create_params"):
        next(tasks(str(file), url="http://x"))
    with pytest.raises(UserError, match="is not an item of NeMo Gym"):
        NemoGym({"id": "7", "messages": []})
