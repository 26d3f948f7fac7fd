"""Tasks of a package: checked, without the sound code, equal for equal seeds, and judged by the package's own tests."""

import asyncio
import filecmp
import inspect
import json
import os
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from agentloop.cli.authoring.tasks import app
from agentloop.envs.harbor.attempt import Attempt
from agentloop.envs.harbor.check import check_tasks, run_solution
from agentloop.envs.harbor.making.swe import making
from agentloop.envs.harbor.making.swe.making import SweOptions, swe_tasks
from agentloop.envs.harbor.making.swe.suite import Outcome
from agentloop.envs.harbor.tasks.task import HarborTask
from agentloop.errors import UserError
from agentloop.process.owned_folders import own_label
from tests.envs.harbor.making.swe.conftest import AREA, FILES, write

pytestmark = pytest.mark.slow

UNITTEST = SweOptions(runner="unittest")


async def made(package: Path | str, folder: Path, count: int, provider, options: SweOptions = UNITTEST) -> list[Path]:
    return [task async for task in swe_tasks(str(package), folder, count, provider, options)]


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_tasks_hold_the_bug_and_nothing_of_the_sound_code(shapes, tmp_path, provider):
    folders = await made(shapes, tmp_path / "tasks", 4, provider)
    assert len(folders) == 4
    for folder in folders:
        step = folder / "steps/step-1"
        work, tree = step / "workdir", step / "tests/tree"
        assert not [name for name in files_of(folder) if "pycache" in name or ".git" in name or "build" in name]
        changed = [name for name in FILES if (work / name).is_file() and (work / name).read_text() != FILES[name]]
        assert len(changed) == 1
        assert changed[0] in ("src/shapes/area.py", "src/shapes/names.py")
        assert not (tree / "src/shapes").exists()
        plan = json.loads((step / "tests/plan.json").read_text())
        assert len(plan["fail_to_pass"]) + len(plan["pass_to_pass"]) == 7
        assert not {name.rpartition(".")[2] for name in plan["chosen"]} & {"test_of_the_network", "test_of_the_clock"}
        # The tests that fail are hidden, and those of the other file are there.
        hidden = {f"tests/{name.split('.')[1]}.py" for name in plan["fail_to_pass"]}
        assert [name for name in FILES if name.startswith("tests/test_") and not (work / name).exists()] == sorted(
            hidden
        )
        instruction = (step / "instruction.md").read_text()
        assert plan["fail_to_pass"][0] in instruction
        assert changed[0] not in instruction
        config = HarborTask.load(folder).config
        assert config.metadata["file"] == changed[0]
        assert config.environment.env["PYTHONPATH"] == "/app/src"
    found = [finding async for finding in check_tasks(folders, provider)]
    assert [(each.problems, each.rewards) for each in found] == [([], {"solution": 1.0, "nothing": 0.0})] * 4


async def test_equal_seeds_make_equal_tasks_for_any_concurrency(shapes, tmp_path, provider):
    one = await made(shapes, tmp_path / "a", 3, provider)
    two = await made(shapes, tmp_path / "b", 3, provider, SweOptions(runner="unittest", concurrent=5))
    names = files_of(tmp_path / "a")
    assert files_of(tmp_path / "b") == names
    assert filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False) == (names, [], [])
    assert [each.name for each in one] == [each.name for each in two]
    other = await made(shapes, tmp_path / "c", 3, provider, SweOptions(runner="unittest", seed=1))
    assert [each.name for each in other] != [each.name for each in one]


EXIT = "echo 'import os; os._exit(0)'"
WRITE = """
import os
try:
    open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
    os.kill(os.getppid(), 9)
finally:
    os._exit(0)
"""
ATTACKS = {
    "tests that the agent changed": "rm -rf tests; mkdir tests; echo > tests/__init__.py; echo > tests/test_area.py",
    "a module that Python imports first": f"{EXIT} | tee src/sitecustomize.py unittest.py usercustomize.py",
    "settings of the runner": f"{EXIT} > conftest.py; printf '[pytest]\\n' > pytest.ini",
    "a reward that is there": "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "other programs": "cp /bin/true /usr/local/bin/python3.11; rm -rf /tests /usr/local/bin/python3; mkdir /tests",
    "code of the package that writes the reward": f"cat > src/shapes/__init__.py <<'END'\n{WRITE}\nEND",
    "tests in the package": f"mkdir src/shapes/tests; {EXIT} | tee src/shapes/conftest.py src/shapes/tests/__init__.py",
    "a link for the package": "mv src/shapes /tmp/x; ln -s /tmp/x src/shapes",
}


async def test_what_the_agent_leaves_forges_no_reward(shapes, tmp_path, provider):
    (folder,) = await made(shapes, tmp_path / "tasks", 1, provider)
    task = HarborTask.load(folder)
    rewards = {name: await played(task, provider, script) for name, script in ATTACKS.items()}
    assert rewards == dict.fromkeys(ATTACKS, 0.0)


async def test_a_correction_counts_even_if_the_agent_changed_the_tests(shapes, tmp_path, provider):
    (folder,) = await made(shapes, tmp_path / "tasks", 1, provider)
    attempt = Attempt(HarborTask.load(folder), provider)
    await attempt.start()
    try:
        await run_solution(attempt)
        await attempt.box.exec("rm -rf tests pyproject.toml; touch src/shapes/conftest.py; python3 -m compileall src")
        assert await attempt.judge() == {"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0}
    finally:
        await attempt.stop()


async def played(task: HarborTask, provider, script: str) -> float:
    attempt = Attempt(task, provider)
    await attempt.start()
    try:
        await attempt.box.exec(script)
        return (await attempt.judge())["reward"]
    finally:
        await attempt.stop()


async def test_packages_without_bugs_or_tests_are_refused(tmp_path, provider):
    none = write(tmp_path / "none", {"none.py": "x = 1\n"})
    failing = {"a/__init__.py": "x = 1\n", "tests/__init__.py": "", "tests/test_a.py": "import missing\n"}
    passing = {"a/__init__.py": "x = 1\n", "tests/__init__.py": ""}
    passing["tests/test_a.py"] = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n"
    slow = {**passing, "tests/test_a.py": "import time\ntime.sleep(60)\n"}
    folder = tmp_path / "tasks"
    for package, says, options in [
        (none, "none has no tests in its source distribution: choose another version, or give a folder", UNITTEST),
        (tmp_path / "gone.tar.gz", "is neither a file, a folder, nor a package", UNITTEST),
        (write(tmp_path / "failing", failing), "No test of failing passes in a box without a network", UNITTEST),
        (write(tmp_path / "passing", passing), "No bug was found in passing 0", UNITTEST),
        (
            write(tmp_path / "slow", slow),
            "take longer than 1 s: raise --seconds",
            SweOptions(runner="unittest", seconds=1),
        ),
        (none, "There is no modifier 'change_comparisons'. Did you mean", SweOptions(modifiers=["change_comparisons"])),
    ]:
        with pytest.raises(UserError, match=says):
            await made(package, folder, 1, provider, options)
    assert not folder.exists()


async def test_a_bug_that_could_be_looked_up_is_not_made(tmp_path, provider):
    """The library of the image, and the folder itself, have the same file."""
    files = {name: text for name, text in FILES.items() if "names" not in name and "area" not in name}
    files |= {"src/shapes/wrap.py": inspect.getsource(textwrap), "src/shapes/area.py": AREA, "copy.py": AREA}
    files["tests/test_a.py"] = (
        "import unittest\nfrom shapes import area, wrap\nclass A(unittest.TestCase):\n"
        "    def test_a(self): self.assertEqual(wrap.dedent(' a'), 'a')\n"
        "    def test_b(self): self.assertEqual(area.largest([1, 2]), 2)\n"
    )
    with pytest.raises(UserError, match="No bug was found"):
        await made(write(tmp_path / "twice", files), tmp_path / "tasks", 1, provider)


@pytest.mark.parametrize("slow", ["fetch", "write_swe_task"])
async def test_cancelling_leaves_no_files_of_work_that_still_runs(shapes, tmp_path, provider, monkeypatch, slow):
    begun, temporary = threading.Event(), tmp_path / "temporary"
    temporary.mkdir()
    work = getattr(making, slow)

    def slowly(*arguments, **options):
        begun.set()
        time.sleep(0.5)
        return work(*arguments, **options)

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(making, slow, slowly)
    task = asyncio.create_task(made(shapes, tmp_path / "tasks", 1, provider))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1)  # the work would have ended by now
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "tasks").exists()


def test_the_command_line_makes_them(shapes, tmp_path):
    folder = tmp_path / "my tasks"
    arguments = ["swe", str(shapes), str(folder), "--num", "2", "--runner", "unittest", "--provider", "rootfs"]
    result = CliRunner().invoke(app, [*arguments, "--modifier", "change_operator", "--modifier", "change_comparison"])
    assert result.exit_code == 0, result.output
    assert "shapes 1.2: 7 tests pass each time" in result.output
    assert f"made 2 tasks in {folder}: agentloop tasks check '{folder}'\n" in result.output
    kinds = {HarborTask.load(task).config.metadata["modifier"] for task in folder.iterdir()}
    assert kinds <= {"change_operator", "change_comparison"}
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, UserError)
    assert "already: choose another folder" in str(again.exception)


@pytest.mark.parametrize(
    ("folder", "words"), [("file/x", "file/x cannot be written to: Not a directory"), ("file", "file exists already")]
)
async def test_a_folder_that_cannot_be_made_ends_it_before_the_work(tmp_path, folder, words):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=words):
        await made(tmp_path / "no such package", tmp_path / folder, 1, None)


async def test_a_second_maker_of_the_same_tasks_is_refused(shapes, tmp_path, monkeypatch):
    begun, ended = asyncio.Event(), asyncio.Event()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    class Slow:
        async def prepare(self, image):
            begun.set()
            await ended.wait()
            raise UserError("ended")

    first = asyncio.create_task(made(shapes, tmp_path / "tasks", 1, Slow()))
    await asyncio.wait_for(begun.wait(), 60)
    who = rf"\(process {os.getpid()} on .*\): choose another folder, or wait for its end\."
    with pytest.raises(UserError, match=rf"Another process is making tasks named shapes-1\.2-… in .* {who}"):
        await made(shapes, tmp_path / "tasks", 1, Slow())
    # A later process can see whose folder it is, and removes it if its owner was killed.
    assert [path.read_text() for path in temporary.glob("agentloop-swe-*/.owner")] == [own_label()]
    ended.set()
    with pytest.raises(UserError, match="ended"):
        await first
    assert not (tmp_path / "tasks").exists()


async def test_a_requirement_to_leave_out_must_exist(tmp_path):
    files = {**FILES, "pyproject.toml": '[project]\nname = "shapes"\nversion = "1.2"\ndependencies = ["attrs>=20"]\n'}
    package = write(tmp_path / "shapes", files)
    with pytest.raises(UserError, match=r"no requirement 'atrs'.* Did you mean 'attrs'\? Their requirements: attrs\."):
        await made(package, tmp_path / "tasks", 1, None, SweOptions(runner="unittest", without=["atrs"]))


async def test_no_name_of_a_test_whose_names_change_is_kept():
    names = {"a.py::test_set[0-x]", "a.py::test_set[1-y]", "a.py::test_list[0]", "a.py::test_flaky", "a.py::test_plain"}
    outcomes = iter(
        [
            Outcome(frozenset(names), {}, {}, False, ""),
            # y has the same position in both runs
            Outcome(
                frozenset({"a.py::test_set[1-y]", "a.py::test_list[0]", "a.py::test_plain"}),
                {"a.py::test_flaky": "no"}, {}, False, "",
            ),
        ]
    )  # fmt: skip

    class TwoRuns:
        package = SimpleNamespace(name="dates")

        def plan(self, **options):
            return options

        async def run(self, plan):
            return next(outcomes)

    stable, _ = await making._stable_tests(TwoRuns(), SweOptions())
    assert stable == {"a.py::test_list[0]", "a.py::test_plain"}
