"""A dry run on given answers."""

import json

import pytest

from agentloop.api.recipe import load_fine_tuning_config
from agentloop.cli import main
from agentloop.trainer.run.checkpoints import FORMAT
from agentloop.trainer.run.resume import open_run
from agentloop.trainer.schedule.queue import QueueState

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


def test_trained_turns_are_shown_apart(answers, dry_run):
    turns = [("user", "1 plus 1?"), ("assistant", "It is 2."), ("user", "2 plus 2?"), ("assistant", "It is 4.")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (answers / "conversations.jsonl").write_text(json.dumps(row))
    code, shown, _ = dry_run("sft")
    assert code == 0
    assert "first, trained   'It is 2.<|im_end|>', 'It is 4.<|im_end|>'\n" in shown
    row["messages"] *= 4
    (answers / "conversations.jsonl").write_text(json.dumps(row))
    assert "'It is 2.<|im_end|>', and 3 more turns\n" in dry_run("sft")[1]


def test_a_data_set_without_a_usable_row_is_an_error(answers, dry_run):
    code, _, error = dry_run("sft", "data.max_tokens=5")
    assert code == 2
    assert "None of the 12 conversations of data.train can be trained: 12 too_long. The shortest" in error
    answer = {"role": "assistant", "content": "It is 2.", "weight": 0}
    row = {"messages": [{"role": "user", "content": "1 plus 1?"}, answer]}
    (answers / "untrained.jsonl").write_text(json.dumps(row))
    code, _, error = dry_run("sft", f"data.eval={answers}/untrained.jsonl")
    assert code == 2
    assert "None of the 1 conversations of data.eval can be trained: 1 no_sampled_tokens. Each needs" in error


def test_a_run_in_the_folder_is_resumed_only_with_its_settings(answers, dry_run):
    config = load_fine_tuning_config(str(answers), [], "sft")
    folder, _ = open_run(config, answers / "run")
    folder.append_metrics({"step": 1})
    step = folder.checkpoints / "step_000003"
    step.mkdir()
    state = {"step": 3, "sampler": {}, "config": config.model_dump(mode="json"), "format": FORMAT}
    (step / "state.json").write_text(json.dumps(state | {"queue": QueueState().as_json()}))
    code, shown, _ = dry_run("sft", f"run.folder={answers}/run")
    assert code == 0
    assert "resumes          after step 3 of 4\n" in shown
    code, _, error = dry_run("sft", f"run.folder={answers}/run", "batch_size=6")
    assert code == 2
    assert "was started with other settings: batch_size: 4 -> 6. Set them back" in error


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
