"""Mistakes of users: one paragraph on stderr that explains the fix, exit code 2, and no traceback."""

import json
import shutil
from pathlib import Path

import pytest

from agentloop.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def refused(sums, capsys):
    """Return a function that runs `agentloop train` on the recipe folder and returns its error, one paragraph."""

    def train(*overrides):
        with pytest.raises(SystemExit) as caught:
            main(["train", str(sums), f"run.folder={sums}/run", "run.loggers=[]", *overrides])
        assert caught.value.code == 2
        error = capsys.readouterr().err.strip()
        # Progress bars of libraries also go to stderr; the error is the last line.
        assert "Traceback" not in error
        return error.splitlines()[-1]

    return train


def test_missing_dataset(sums, refused):
    error = refused("data.train=nothing.jsonl")
    assert "There is no dataset file" in error
    assert "nothing.jsonl" in error
    assert not (sums / "run").exists()


def test_a_missing_file_of_a_recipe_with_a_readme_names_it(sums, refused):
    (sums / "README.md").touch()
    hint = f"{sums}/README.md may say how to make it."
    assert refused(f"data.train={sums}/data/nothing.jsonl").endswith(hint)
    assert refused(f"model={sums}/data/model").endswith(hint)


def test_malformed_row(sums, refused):
    (sums / "rows.jsonl").write_text('{"prompt": "a", "answer": 1}\n{"promt": "b"}\n')
    error = refused(f"data.train={sums}/rows.jsonl", "data.train_options={}")
    assert "rows.jsonl, line 2" in error
    assert "'promt'" in error


def test_unknown_tool(refused):
    error = refused("env.tools=[code_interpretr]")
    assert "code_interpretr" in error
    assert "code_interpreter" in error.replace("code_interpretr", "")


def test_unknown_config_key(refused):
    error = refused("algorithm.group_sise=4")
    assert "'algorithm.group_sise'" in error
    assert "Did you mean 'group_size'?" in error


def test_model_folder_without_chat_template(sums, refused, sums_model):
    (sums / "model").unlink()
    shutil.copytree(sums_model, sums / "model")
    (sums / "model" / "chat_template.jinja").unlink(missing_ok=True)
    settings = sums / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    error = refused()
    assert "has no chat template" in error
    assert "chat_template.jinja" in error


def test_missing_model_folder(refused):
    assert "no config.json" in refused("model=./nothing-here/..")
    assert f"There is no model folder {Path.cwd()}/nothing-here." in refused("model=./nothing-here")


def test_reward_that_raises(sums, refused):
    error = refused(f"env.reward={sums}/sums.py:broken_reward", "eval.every=0")
    assert "12 of 12 episodes failed (judge 12)" in error
    assert "ZeroDivisionError: division by zero" in error
    assert "sums.py:broken_reward" in error
    assert "row '" in error
    # The episodes that show the failure stay.
    assert (sums / "run" / "trajectories" / "step_000001.jsonl.gz").is_file()


def test_contradicting_settings(refused):
    error = refused("algorithm.group_size=1")
    assert "algorithm.group_size is 1" in error
