"""`agentloop rewards` and `agentloop envs`: what is registered, and an answer judged from the shell."""

import pytest
from typer.testing import CliRunner

from agentloop.cli import app
from agentloop.envs.registry import ENVS
from agentloop.envs.rewards import REWARDS
from tests.support.installed import install

REWARD = '''
def length(trajectory, task, *, most: int = 10):
    """Return 1.0 for a short answer."""
    return {"reward": float(len(trajectory.final_text) <= most), "characters": len(trajectory.final_text)}

def broken(trajectory, task):
    return None
'''
CONFIG = """
model: nowhere
data: {train: rows.jsonl}
env:
  reward:
    - {name: exact, weight: 2.0}
    - {name: contains, weight: 0.5}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(REWARD)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "6 * 7?", "answer": "42"}\n{"prompt": "6 * 6?", "answer": "36"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def parts(result) -> dict[str, float]:
    assert result.exit_code == 0, result.exception
    return {name: float(value) for name, value in (line.rsplit(maxsplit=1) for line in result.output.splitlines())}


@pytest.mark.parametrize(("command", "registry"), [("envs", ENVS), ("rewards", REWARDS)])
def test_lists_have_every_name(command, registry):
    names = [line.partition("\t")[0] for line in run(command, "list").output.splitlines()]
    assert set(registry) <= set(names)


def test_rewards_of_packages_are_listed_and_errors_shown(folder, monkeypatch):
    install(folder / "site", "agentloop.rewards", short="own:length", gone="nowhere:reward")
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.syspath_prepend(folder)
    output = run("rewards", "list").output
    assert "short\tReturn 1.0 for a short answer.\toptions: most\tpackage: example\n" in output
    assert "'gone' of the package 'example' fails to import" in output


@pytest.mark.parametrize("command", ["envs", "rewards"])
def test_a_package_that_registers_something_else_does_not_hide_the_others(folder, monkeypatch, command):
    install(folder / "site", f"agentloop.{command}", number="math:pi", mapping="builtins:dict")
    monkeypatch.syspath_prepend(folder / "site")
    output = run(command, "list").output
    assert "'number' is of type float: name " in output
    assert "'mapping' is a class" in output


def test_parameters_that_collect_others_are_no_options(folder, monkeypatch):
    (folder / "own_env.py").write_text("def make(row, *others, tag, **parts):\n    'Play.'\n")
    install(folder / "site", "agentloop.envs", collecting="own_env:make")
    monkeypatch.syspath_prepend(folder / "site")
    monkeypatch.syspath_prepend(folder)
    assert "collecting\tPlay.\toptions: tag\tpackage" in run("envs", "list").output


def test_an_answer_is_judged_with_its_parts():
    assert parts(run("rewards", "try", "exact", "42", "--task", '{"answer": "42"}')) == {"reward": 1}
    thinking = "<think>\nLong thoughts about it.\n</think>\n42"
    found = parts(run("rewards", "try", "own.py:length", thinking, "--option", "most=2"))
    assert found == {"reward": 1, "characters": 2}


def test_the_rows_of_a_dataset_and_the_reward_of_a_recipe():
    assert parts(run("rewards", "try", "exact", "36", "--data", "rows.jsonl", "--row", "1")) == {"reward": 1}
    assert parts(run("rewards", "try", "config.yaml", "It is 42.")) == {"reward": 0.5, "exact": 0, "contains": 1}
    assert parts(run("rewards", "try", ".", "36", "--row", "1"))["reward"] == 2.5


def test_a_recipe_may_be_given_by_its_name_as_for_train():
    assert parts(run("rewards", "try", "tiny", "no answer"))["reward"] == 0
    # The name of both a reward and a recipe is that of the reward, whose options may be set.
    assert parts(run("rewards", "try", "search_r1", "42", "--option", "format_reward=0.5")) == {"reward": 0}


def test_a_row_that_cannot_be_judged_exits_with_1():
    result = run("rewards", "try", "exact", "42")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "The reward 'exact' raised LookupError: the row has no 'answer' column" in result.stderr
    assert "Neither --task nor --data sets the row" in result.stderr
    assert "Neither" not in run("rewards", "try", "exact", "42", "--task", "{}").stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["own.py:broken", "42"], "broken (own.py, line 6) returned None as the reward"),
        (
            ["own.py:length", "42", "--option", "most=few"],
            "'most' of the reward 'own.py:length' must be of type int, got str",
        ),
        (["exat", "42"], "Did you mean 'exact'"),
        (["exact", "42", "--data", "rows.jsonl", "--row", "2"], "has only 2 rows"),
        (["exact", "42", "--data", "rows.jsonl", "--task", "{}"], "omit one of them"),
        (["config.yaml", "42", "--option", "a=1"], "sets the options itself"),
    ],
)
def test_mistakes_are_named(arguments, words):
    assert words in str(run("rewards", "try", *arguments).exception)
