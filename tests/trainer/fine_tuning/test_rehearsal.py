"""A dry run on given answers."""

import pytest

from agentloop.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def dry_run(answers, capsys):
    """Return a function that makes a dry run with overrides, and returns its code and what it printed."""

    def rehearsed(method, *overrides):
        with pytest.raises(SystemExit) as ended:
            main([method, str(answers), "--dry-run", *overrides])
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return rehearsed


def test_steps_epochs_and_batch_size_are_shown_apart(dry_run):
    code, shown, _ = dry_run("dpo", "run.steps=3", "batch_size=2", "data.train_limit=2", "data.eval=null")
    assert code == 0
    assert "pairs            2 to train on, 0 held out\n" in shown
    assert "steps            3, 3.00 epochs\n" in shown
    assert "batch size       2\n" in shown


def test_a_folder_that_cannot_be_written_to(answers, dry_run):
    (answers / "taken").touch()
    code, _, error = dry_run("sft", f"run.folder={answers}/taken/run")
    assert code == 2
    assert "cannot be written to: Not a directory. Set run.folder" in error


def test_a_config_of_train_names_its_command(answers, dry_run):
    (answers / "sft.yaml").write_text("model: ./model\ndata: {train: rows.jsonl}\nenv: {reward: exact}\n")
    code, _, error = dry_run("sft")
    assert code == 2
    assert "It is a config of `agentloop train`, because it has the section env: use that command." in error
