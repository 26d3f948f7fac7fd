"""`agentloop init`: the packages that it writes pass their own tests and are found by name."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentloop.cli import app
from agentloop.errors import UserError

KINDS = ("env", "tool", "recipe")
TINY = Path(__file__).parents[3] / "recipes" / "tiny" / "checkpoint"
INSTALL = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]


def init(kind: str, name: str, into: Path):
    return CliRunner().invoke(app, ["init", kind, name, "--into", str(into)])


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Return what a command prints on a wide terminal."""
    environment = {"PATH": str(Path(sys.executable).parent), "COLUMNS": "300", **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_passes_its_own_test_and_is_found_by_name(kind, tmp_path):
    assert f"my-{kind} && pip install -e" in init(kind, f"my-{kind}", tmp_path).output
    package = tmp_path / f"my-{kind}"
    assert "passed" in run([sys.executable, "-m", "pytest", "-q"], package)
    site = tmp_path / "site"
    run([sys.executable, *INSTALL, str(site), "--editable", "."], package)
    listing = {"env": "envs", "tool": "tools", "recipe": "rewards"}[kind]
    paths = f"{site}:{package / 'src'}"
    (line,) = [
        line
        for line in run(["agentloop", listing, "list"], tmp_path, PYTHONPATH=paths).splitlines()
        if line.startswith(f"my_{kind}\t")
    ]
    assert f"my-{kind}" in line


@pytest.mark.slow
def test_a_new_recipe_can_be_checked_and_its_reward_tried(tmp_path):
    init("recipe", "sums", tmp_path)
    folder = tmp_path / "sums"
    overrides = [f"model={TINY}", "engine.name=hf", "engine.options={device: cpu}", "learner.device=cpu"]
    assert "steps" in run(["agentloop", "train", "config.yaml", "--dry-run", *overrides], folder)
    assert run(["agentloop", "rewards", "try", "config.yaml", "It is 1"], folder).split() == ["reward", "0"]


@pytest.mark.parametrize("into", ["file", "file/below"])
def test_a_folder_below_a_file_is_refused(into, tmp_path):
    (tmp_path / "file").touch()
    error = init("env", "my-game", tmp_path / into).exception
    assert isinstance(error, UserError)
    assert f"{tmp_path / 'file'} is not a folder: name a folder." in str(error)


@pytest.mark.parametrize("name", ["two words", "1st", "game-", "json", "agentloop", "class", ""])
def test_names_that_no_package_can_have_are_refused(name, tmp_path):
    result = init("env", name, tmp_path)
    assert isinstance(result.exception, UserError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("env", "none", "the class of the package cannot have the name 'None'"),
        ("env", "observation", "the class of the package cannot have the name 'Observation'"),
        ("env", "stop-reason", "the class of the package cannot have the name 'StopReason'"),
        ("tool", "tool_context", "the class of the package cannot have the name 'ToolContext'"),
        (
            "tool",
            "code-interpreter",
            "a tool 'code_interpreter' exists already: choose another name, such as my-code-i",
        ),
        ("env", "harbor", "an environment 'harbor' exists already"),
        ("recipe", "exact", "a reward 'exact' exists already"),
        ("env", "jinja2", "a module 'jinja2' exists already"),
    ],
)
def test_names_that_something_else_has_are_refused(kind, name, message, tmp_path):
    assert message in str(init(kind, name, tmp_path).exception)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_may_have_the_name_of_a_class(tmp_path):
    assert init("recipe", "trajectory", tmp_path).exit_code == 0  # its template has no class


def test_a_folder_that_exists_is_kept(tmp_path):
    (tmp_path / "game").mkdir()
    assert "exists already" in str(init("env", "game", tmp_path).exception)
