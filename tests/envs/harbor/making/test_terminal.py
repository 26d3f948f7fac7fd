"""Generated terminal tasks: solutions get 1 and nothing gets 0, in every family; equal seeds make equal tasks."""

import filecmp

import pytest
from typer.testing import CliRunner

from agentloop import boxes
from agentloop.cli.authoring.tasks import app
from agentloop.envs.harbor.check import check_tasks
from agentloop.envs.harbor.making.folder import Step, write_task
from agentloop.envs.harbor.making.terminal import FAMILIES, terminal_tasks
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.errors import UserError
from tests.boxes.conftest import tree

__all__ = ["tree"]

NAMES = [(level, name) for level, families in FAMILIES.items() for name in families]


@pytest.mark.slow
async def test_every_family_is_solved_by_its_solution_only(tmp_path, tree):
    folders = [
        folder
        for level, name in NAMES
        for separate in (0.0, 1.0)
        for folder in terminal_tasks(
            tmp_path / f"{name}-{separate}", 1, levels=[level], families=[name], max_steps=1, separate=separate
        )
    ]
    folders += terminal_tasks(tmp_path / "mixed", 12, seed=3, separate=0.4)
    provider = boxes.create("rootfs", memory_mb=256, storage_mb=64)
    await provider.open()
    found = [each async for each in check_tasks(folders, provider, images={"*": str(tree)})]
    await provider.close()
    assert {str(each.folder): each.problems for each in found if each.problems} == {}
    assert len(found) == 2 * len(NAMES) + 12


def test_equal_seeds_make_equal_tasks_for_any_number(tmp_path):
    few, many = list(terminal_tasks(tmp_path / "few", 10, seed=5)), list(terminal_tasks(tmp_path / "many", 30, seed=5))
    assert [folder.name for folder in few] == [folder.name for folder in many[:10]]
    for one, other in zip(few, many, strict=False):
        names = [str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()]
        assert filecmp.cmpfiles(one, other, names, shallow=False) == (names, [], [])
    other = list(terminal_tasks(tmp_path / "other", 10, seed=6))
    assert [folder.name for folder in other] != [folder.name for folder in few]


def test_steps_and_separate_verifiers_are_among_them(tmp_path):
    tasks = [HarborTask.load(folder) for folder in terminal_tasks(tmp_path / "t", 60)]
    assert {len(task.steps) for task in tasks} == {1, 2, 3}
    assert 5 < sum(task.steps[0].is_separate for task in tasks) < 25
    single = [HarborTask.load(each) for each in terminal_tasks(tmp_path / "s", 20, max_steps=1, separate=0.0)]
    assert {(len(task.steps), task.steps[0].is_separate) for task in single} == {(1, False)}


def test_tests_of_each_step_have_the_time_limit(tmp_path):
    steps = [Step(instruction="Do it.", solution="true", conditions=["true"])] * 2
    task = HarborTask.load(write_task(tmp_path / "t", steps, separate=True))
    assert [(step.verifier_timeout, step.is_separate) for step in task.steps] == [(60.0, True)] * 2


def test_wrong_names_and_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"Terminal tasks have no level 4\. Choose from the levels 1, "):
        list(terminal_tasks(tmp_path / "a", 1, levels=[4]))
    with pytest.raises(UserError, match=r"Unknown families \['sort'\] for the levels \[1\]"):
        list(terminal_tasks(tmp_path / "a", 1, levels=[1], families=["sort"]))
    step = Step(instruction="Do it.", solution="true", conditions=["true"])
    write_task(tmp_path / "b", [step])
    with pytest.raises(UserError, match="exists already"):
        write_task(tmp_path / "b", [step])
    with pytest.raises(UserError, match=r"b exists already: choose another folder, or remove it\."):
        list(terminal_tasks(tmp_path / "b", 1))
    assert [path.name for path in (tmp_path / "b").glob("0*")] == []


def test_the_command_line_makes_them(tmp_path):
    folder = tmp_path / "my tasks"
    arguments = ["terminal", str(folder), "--num", "3", "--seed", "2", "--level", "1", "--image", "busybox"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"made 3 tasks in {folder}: agentloop tasks check '{folder}'\n" in result.output
    found = sorted(folder.iterdir())
    assert [HarborTask.load(folder).config.environment.docker_image for folder in found] == ["busybox"] * 3


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    for folder, words in [("file/x", "file/x cannot be written to: Not a directory"), ("file", "file exists already")]:
        with pytest.raises(UserError, match=words):
            list(terminal_tasks(tmp_path / folder, 1))
