"""The model of any checkpoint leaves a run, and a rollout of a run plays the model that the run trained."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentloop.cli import main
from agentloop.trainer.learner.fsdp.learner import FsdpLearner

pytestmark = pytest.mark.slow


def agentloop(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def weights(folder):
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())


def differ(one, other):
    return any(not torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def run(sums):
    """Return the folder of a run of three steps, each with a checkpoint."""
    settings = [f"run.folder={sums}/run", "run.steps=3", "run.save_every=1", "run.keep_last=3", "learner.lr=1e-2"]
    settings += ["learner.kl_coef=0.01", "learner.reference_every=2"]  # checkpoints have the reference, too
    assert agentloop("train", sums, *settings) == 0
    return sums / "run"


def test_each_checkpoint_is_exported_and_the_last_is_the_trained_model(run, sums, capsys):
    for step in (1, 2, 3):
        assert agentloop("export", run, sums / f"out{step}", "--step", step) == 0
    assert "after step 3" in capsys.readouterr().out
    first, second, third = (weights(sums / f"out{step}") for step in (1, 2, 3))
    assert differ(first, second)
    assert differ(second, third)
    assert not differ(third, weights(run / "model"))
    assert (sums / "out1" / "tokenizer.json").is_file()


def test_a_saved_model_has_the_config_of_its_base_and_is_readable_by_others(run, sums):
    base = json.loads((sums / "model" / "config.json").read_text())
    assert json.loads((run / "model" / "config.json").read_text()) == base
    modes = {path.name: path.stat().st_mode & 0o777 for path in (run / "model").iterdir()}
    plain = (run / "metrics.jsonl").stat().st_mode & 0o777  # as the umask has it
    assert set(modes.values()) == {plain}, modes


def test_export_writes_the_requested_dtype(run, sums):
    assert agentloop("export", run, sums / "half", "--dtype", "bfloat16") == 0
    assert json.loads((sums / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(sums / "half").dtype == torch.bfloat16


def test_export_refuses_unknown_steps_existing_folders_and_folders_of_no_run(run, sums, capsys):
    assert agentloop("export", run, sums / "out", "--step", 7) == 2
    assert "It has checkpoints of steps 1, 2, 3" in " ".join(capsys.readouterr().err.split())
    assert agentloop("export", run, run) == 2
    assert "Export to a new folder" in capsys.readouterr().err
    (sums / "begun").mkdir()
    shutil.copy(run / "config.yaml", sums / "begun")
    assert agentloop("export", sums / "begun", sums / "out") == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert agentloop("export", run / "checkpoints", sums / "out") == 2
    assert "is not the folder of a run" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("folder", "reason"), [("file", "Not a directory"), ("/proc", "No such file or directory")])
def test_export_to_a_folder_that_cannot_be_created_is_refused_at_once(tmp_path, folder, reason, capsys):
    (tmp_path / "file").touch()
    output = tmp_path / folder / "out"
    assert agentloop("export", tmp_path, output) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{output} cannot be written to: {reason}. Export to another folder." in said


def test_a_checkpoint_that_a_running_run_removes_during_the_export_is_explained(run, sums, monkeypatch, capsys):
    load = FsdpLearner.load_weights

    def removed(learner, state):
        shutil.rmtree(state.parent)
        load(learner, state)

    monkeypatch.setattr(FsdpLearner, "load_weights", removed)
    assert agentloop("export", run, sums / "out") == 2
    assert "removed the checkpoint of step 3 while it was exported" in " ".join(capsys.readouterr().err.split())
    assert not (sums / "out").exists()


def test_a_rollout_of_a_run_plays_its_trained_model_and_names_it(run, sums, capsys):
    played = {}
    for name, options in {"last": [], "first": ["--step", 1], "base": ["--step", 0]}.items():
        assert agentloop("rollout", run, *options, "--output", sums / name) == 0
        played[name] = json.loads((sums / name / "summary.json").read_text())
    shown = " ".join(capsys.readouterr().out.split())
    assert played["last"]["model"] == str(run / "model")
    assert played["first"]["model"] == str(run / "exported" / "step_000001")
    assert played["base"]["model"] == str(sums / "model")
    assert f"playing: the trained model of {run}" in shown
    assert f"playing: the model of {run} after step 1" in shown


def test_a_step_of_something_that_is_no_run_is_refused(sums, capsys):
    assert agentloop("rollout", sums, "--step", 1) == 2
    assert "Pass the folder of a run" in " ".join(capsys.readouterr().err.split())


def test_a_rollout_of_a_run_resumes_from_another_working_directory(run, sums, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert agentloop("rollout", run.name, "--limit", 1, "--output", sums / "out") == 0
    monkeypatch.chdir(run)
    assert agentloop("rollout", ".", "--limit", 2, "--output", sums / "out", "--resume") == 0
