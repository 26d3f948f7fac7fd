"""Harbor tasks as episodes of the loop: the model works in a box with tools, and the tests of the task judge it."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from agentloop import AgentLoop, Limits, StopReason
from agentloop.boxes.shared import close_providers, provider_of
from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.envs.harbor.env import HarborEnv, tasks
from agentloop.episodes.setup import RunTasks
from agentloop.errors import UserError
from agentloop.recipes.tiny.tokenizer import build_tokenizer
from agentloop.rendering import renderer_for
from agentloop.tools.machine.bash import Bash
from agentloop.tools.machine.edit import Edit
from agentloop.tools.machine.shell import Shell
from agentloop.tools.toolset import Toolset
from tests.boxes.processes import running
from tests.support.harbor_tasks import HELLO, make_task

pytestmark = pytest.mark.slow

OPTIONS = {"provider": "rootfs", "provider_options": {"memory_mb": 256, "storage_mb": 64}}


def bash(command):
    return {"name": "bash", "arguments": {"command": command}}


def play(folder, tree, *turns, limits=None, **options):
    """Play an episode in which the model says `turns`: texts, or calls."""
    renderer = renderer_for(build_tokenizer())

    def ids_of(turn):
        text = turn if isinstance(turn, str) else f"<tool_call>\n{json.dumps(turn)}\n</tool_call>"
        return [*renderer.encoder.encode_rendered(text), renderer.stop_token_ids[0]]

    async def episode():
        row = next(tasks(str(folder)))
        loop = AgentLoop(ScriptedEngine([ids_of(turn) for turn in turns]), renderer, limits=Limits(**(limits or {})))
        env = HarborEnv(row, toolset=Toolset([Bash(), Edit()]), images={"*": str(tree)}, **OPTIONS, **options)
        try:
            return await loop.run(env, trajectory_id="t-0", group_id="t", seed=0)
        finally:
            await close_providers()

    return asyncio.run(episode())


def told(trajectory):
    return [message["content"] for message in trajectory.messages if message["role"] in ("user", "tool", "system")]


def test_a_model_solves_a_task_with_tools(tmp_path, tree):
    create = {"name": "edit", "arguments": {"command": "create", "path": "hello", "file_text": "world\n"}}
    found = play(make_task(tmp_path / "t"), tree, bash("pwd; ls /tests"), create, "Done.", system="You work in a box.")
    assert (found.stop_reason, found.error, found.reward) == (StopReason.COMPLETED, None, 1.0)
    assert told(found) == [
        "You work in a box.",
        "Write world to /app/hello.",
        "/app\nls: /tests: No such file or directory\n[exit code 1]",
        "Wrote hello.",
    ]
    assert found.metrics["env/seconds_starting_box"] > 0
    assert found.metrics["env/seconds_testing"] > 0


def test_a_model_that_does_nothing_gets_the_reward_of_the_tests(tmp_path, tree):
    found = play(make_task(tmp_path / "t"), tree, "I do nothing.")
    assert (found.stop_reason, found.reward, found.failures) == (StopReason.COMPLETED, 0.0, {})


def test_work_is_judged_when_a_limit_ends_the_episode(tmp_path, tree):
    found = play(make_task(tmp_path / "t"), tree, bash("echo world > hello"), limits={"max_turns": 1})
    assert (found.stop_reason, found.reward) == (StopReason.MAX_TURNS, 1.0)


def test_each_step_is_a_message_and_further_numbers_are_metrics(tmp_path, tree):
    last = '#!/bin/sh\necho \'{"reward": 0.5, "style": 0.25}\' > /logs/verifier/reward.json\n'
    steps = {"one": {"instruction": "First.", "test": HELLO}, "two": {"instruction": "Second.", "test": last}}
    found = play(make_task(tmp_path / "t", steps=steps), tree, bash("echo world > hello"), "Done.", "Done, too.")
    assert (found.stop_reason, found.reward) == (StopReason.COMPLETED, 0.75)
    assert told(found) == ["First.", "", "Second."]
    assert found.metrics["reward/style"] == 0.125


def test_an_episode_cut_in_its_second_step_has_the_rewards_of_both(tmp_path, tree):
    steps = {"one": {"instruction": "First.", "test": HELLO}, "two": {"instruction": "Second.", "test": HELLO}}
    found = play(
        make_task(tmp_path / "t", steps=steps), tree, bash("echo world > hello"), "Done.", limits={"max_turns": 2}
    )
    assert found.reward == 1.0


def test_tests_without_a_reward_fail_the_episode(tmp_path, tree):
    found = play(make_task(tmp_path / "t", test="#!/bin/sh\ntrue\n"), tree, "Done.")
    assert (found.reward, found.failures) == (None, {"judge": 1})
    assert "wrote neither /logs/verifier/reward.json nor" in found.error


def test_a_task_that_cannot_be_played_fails_the_episode(tmp_path, tree):
    found = play(make_task(tmp_path / "t", environment={"gpus": 1}), tree, "Done.")
    assert (found.stop_reason, found.failures) == (StopReason.ENV_ERROR, {"env": 1})
    assert "GPUs" in found.error


def test_the_time_of_a_task_ends_its_commands(tmp_path, tree):
    folder = make_task(tmp_path / "t", agent={"timeout_sec": 1.0})
    found = play(folder, tree, bash("echo world > hello; sleep 30"), bash("echo more"), "Done.")
    assert (found.stop_reason, found.reward) == (StopReason.MAX_SECONDS, 1.0)


def test_a_box_that_dies_fails_the_episode(tmp_path, tree, monkeypatch):
    """The first process of the box is killed from outside while a command runs."""
    monkeypatch.setattr("agentloop.tools.machine.shell.Shell.run", _kill_and_run(Shell.run))
    found = play(make_task(tmp_path / "t"), tree, bash("sleep 78126"), "Done.")
    assert (found.stop_reason, found.reward, found.failures) == (StopReason.ENV_ERROR, None, {"env": 1})
    assert "has ended, and its files are lost" in found.error


def _kill_and_run(run):
    async def killed(self, command, seconds):
        task = asyncio.ensure_future(run(self, command, seconds))
        while not running("sleep 78126"):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
        os.kill(_first_process_of(running("sleep 78126")[-1]), signal.SIGKILL)
        return await task

    return killed


def _first_process_of(pid):
    """Return the first process of the pid namespace of a process."""
    space = os.readlink(f"/proc/{pid}/ns/pid")
    for each in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{each}/status").read_text()
            if (
                os.readlink(f"/proc/{each}/ns/pid") == space
                and text.split("NSpid:")[1].split("\n")[0].split()[-1] == "1"
            ):
                return int(each)
    raise AssertionError("no first process")


def test_nothing_runs_after_an_episode(tmp_path, tree):
    play(make_task(tmp_path / "t"), tree, bash("(setsid sleep 78124 &) ; sleep 78125 &"), "Done.")
    assert running("sleep 7812") == []


def test_rows_are_the_tasks_below_folders(tmp_path):
    for name in ("b", "a/deep", "c"):
        make_task(tmp_path / name)
    assert [row["id"] for row in tasks(str(tmp_path))] == ["deep", "b", "c"]
    assert [row["id"] for row in tasks([str(tmp_path)], first=1, count=1)] == ["b"]
    assert [row["task"] for row in tasks(str(tmp_path / "b"))] == [str(tmp_path / "b")]
    with pytest.raises(UserError, match="has no Harbor tasks"):
        list(tasks(str(tmp_path / "b/tests")))
    (tmp_path / "c/instruction.md").unlink()
    with pytest.raises(UserError, match=r"c has no instruction\.md"):
        list(tasks(str(tmp_path)))
    with pytest.raises(UserError, match="has no task: use the rows"):
        HarborEnv({"id": "x"})


async def test_episodes_share_one_provider():
    first, second = await asyncio.gather(provider_of("rootfs"), provider_of("rootfs"))
    assert first is second
    assert await provider_of("rootfs", {"storage_mb": 32}) is not first
    with pytest.raises(UserError, match="box provider 'nothing'"):
        await provider_of("nothing")
    await close_providers()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"carried": "/app"}, r"`carried` in env.options must be a list of absolute paths .*, not '/app'"),
        ({"carried": ["app"]}, r"`carried` in env.options must be a list of absolute paths .*, not \['app'\]"),
        ({"network": "foo"}, "`network` in env.options is none or public, not 'foo'"),
        ({"images": {"": "x"}}, "The image to replace by 'x' has no name"),
    ],
)
def test_options_that_no_box_can_have_are_refused_at_once(options, words):
    with pytest.raises(UserError, match=words):
        HarborEnv({"task": "t"}, **options)


@pytest.mark.parametrize("env", [{"factory": "harbor"}, {"factory": "harbor_agent", "options": {"command": "true"}}])
def test_images_to_replace_must_be_of_tasks_of_the_run(tmp_path, env):
    for number in range(12):
        make_task(tmp_path / f"tasks/{number:02}", environment={"docker_image": f"swe-{number:02}"})
    source = "agentloop.envs.harbor.env:tasks"

    def load(*names):
        data = {"train": source, "train_options": {"folder": f"{tmp_path}/tasks"}}
        options = {**env.get("options", {}), "images": dict.fromkeys(names, "/image.tar")}
        RunTasks.load(load_config(RunConfig, {"model": "m", "data": data, "env": {**env, "options": options}}))

    load("swe-03", "*")
    with pytest.raises(UserError) as error:
        load("swe-11", "swe-99", "sew-03")
    assert str(error.value) == (
        "No task has the image 'swe-99' or 'sew-03', which is to be replaced: correct or remove it. Did you mean "
        "'swe-09'? The images of the tasks: swe-00, swe-01, swe-02, swe-03, swe-04, swe-05, swe-06, swe-07, swe-08, "
        "swe-09, 2 more."
    )
