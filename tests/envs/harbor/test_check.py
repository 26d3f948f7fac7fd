"""`agentloop tasks check`: what is wrong with tasks, and an exit status that says so."""

import asyncio
import re

import pytest
from typer.testing import CliRunner

from agentloop.cli.authoring.tasks import app
from agentloop.envs.harbor.check import check_tasks
from agentloop.errors import UserError
from tests.support.harbor_tasks import make_task

pytestmark = pytest.mark.slow


def check(folder, tree, *arguments):
    command = ["check", str(folder), "--provider", "rootfs", "--image", f"*={tree}", *arguments]
    return CliRunner().invoke(app, command)


def test_tasks_that_are_right(tmp_path, tree):
    steps = {
        "one": {},
        "two": {
            "test": "#!/bin/sh\ncat /app/second > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
            "solve": "#!/bin/sh\necho $ANSWER > second\n",
        },
    }
    make_task(tmp_path / "a")
    make_task(tmp_path / "b", steps=steps, solution={"env": {"ANSWER": "1"}})
    make_task(tmp_path / "c", verifier={"environment_mode": "separate"}, artifacts=["/app"], agent={"user": "root"})
    result = check(tmp_path, tree)
    assert result.exit_code == 0, result.output
    assert result.output.count("right  ") == 3
    assert result.output.endswith("3 of 3 tasks are valid\n")


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"solve": "#!/bin/sh\ntrue\n"}, "With the solution the reward is 0 and not 1."),
        ({"solve": None}, "has no solution/solve.sh"),
        ({"solve": "#!/bin/sh\necho cannot >&2; exit 2\n"}, "With the solution: the solution failed (2): cannot"),
        (
            {"solve": "#!/bin/sh\nsleep 60\n", "agent": {"timeout_sec": 0.5}},
            "With the solution: the solution took longer than the task allows",
        ),
        ({"test": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"}, "With nothing done the reward is 1 and not 0."),
        ({"test": "#!/bin/sh\ntrue\n"}, "With nothing done: the tests wrote neither"),
        (
            {"test": "#!/bin/sh\necho first; /no/such\n"},
            "nor /logs/verifier/reward.txt; they ended with 127 and printed: first\n",
        ),
        ({"environment": {"gpus": 2}}, "GPUs"),
        ({"agent": {"timeout_sec": "soon"}}, "agent.timeout_sec: Input should be a valid number"),
    ],
)
def test_tasks_that_are_wrong(tmp_path, tree, parts, problem):
    make_task(tmp_path / "good")
    make_task(tmp_path / "wrong", **parts)
    result = check(tmp_path, tree)
    assert result.exit_code == 1
    assert problem in result.output
    assert f"wrong  {tmp_path}/wrong" in result.output
    assert result.output.endswith("1 of 2 tasks are valid\n")


def test_files_that_are_wrong(tmp_path, tree):
    (make_task(tmp_path / "a") / "instruction.md").unlink()
    (make_task(tmp_path / "b") / "task.toml").write_text("[agent\n")
    (make_task(tmp_path / "c") / "tests/test.sh").unlink()
    result = check(tmp_path, tree)
    assert result.exit_code == 1
    for problem in ("a has no instruction.md", "b/task.toml is not valid TOML", "c has no tests/test.sh"):
        assert problem in result.output


def test_an_image_that_cannot_be_had(tmp_path):
    make_task(tmp_path / "a")
    result = CliRunner().invoke(app, ["check", str(tmp_path), "--provider", "rootfs", "--image", "*=/no/such.tar"])
    assert result.exit_code == 1
    assert "/no/such.tar" in result.output


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("bas=/no/such.tar", "No task has the image 'bas', .* Did you mean 'base'\\? The images of the tasks: base."),
        ("=x", "The image to replace by 'x' has no name"),
    ],
)
def test_an_image_to_replace_that_no_task_has(tmp_path, image, words):
    make_task(tmp_path / "a")
    result = CliRunner().invoke(app, ["check", str(tmp_path), "--provider", "rootfs", "--image", image])
    assert isinstance(result.exception, UserError)
    assert re.search(words, str(result.exception))


async def test_nothing_is_checked_after_an_interruption(tmp_path):
    started, is_open = asyncio.Event(), True

    class Provider:
        async def start(self, spec):
            assert is_open
            started.set()
            await asyncio.sleep(60)

    async def run():
        nonlocal is_open
        try:
            async for _ in check_tasks(folders, Provider(), concurrent=1):
                pass
        finally:
            is_open = False

    folders = [make_task(tmp_path / name) for name in "ab"]
    others = asyncio.all_tasks()
    checking = asyncio.create_task(run())
    await started.wait()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert asyncio.all_tasks() == others
