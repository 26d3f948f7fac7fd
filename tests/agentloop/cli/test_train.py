import json

import pytest

from agentloop.cli import main

pytestmark = pytest.mark.slow


def agentloop(*arguments):
    """Run the command line and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_train_writes_a_run_and_a_line_a_step(sums, capsys):
    assert agentloop("train", sums, f"run.folder={sums}/run", "run.steps=2", "run.loggers=[]", "eval.every=0") == 0
    lines = [json.loads(line) for line in (sums / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    shown = capsys.readouterr().out
    assert f"run folder {sums}/run" in shown
    assert f"step 2: reward {lines[1]['reward/mean']:.3f}" in shown


def test_dry_run_prints_config_and_plan_and_writes_nothing(sums, capsys):
    assert agentloop("train", sums / "config.yaml", "--dry-run", "learner.lr=0.25", f"run.folder={sums}/run") == 0
    shown = capsys.readouterr().out
    assert "lr: 0.25" in shown
    assert f"train: {sums}/sums.py:tasks" in shown
    assert "10 to train on, 3 held out" in shown
    assert "12 = 3 tasks x 4" in shown
    assert not (sums / "run").exists()


def test_dry_run_places_a_run_on_gpus_of_other_machines(sums, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    elsewhere = "placement={n_gpus: 16, nnodes: 2, gpu: H200, layout: separate, learner_gpus: 4}"
    assert agentloop("train", sums, "--dry-run", elsewhere) == 0
    shown = capsys.readouterr().out
    assert "separate: 16 GPUs on 2 nodes, 0 of them unused" in shown
    assert "12 of 1 GPUs each on GPUs of their own (4 + 8 by node)" in shown
    assert "count: 12" in shown
    assert agentloop("train", sums, elsewhere) == 2
    assert "8 on each, but this node has 0 GPUs" in capsys.readouterr().err


def test_resume_needs_a_checkpoint(sums, capsys):
    assert agentloop("train", sums, "--resume", f"run.folder={sums}/run") == 2
    assert "has no checkpoint to resume from" in capsys.readouterr().err
    assert agentloop("train", sums, "--resume") == 2
    assert "Add run.folder=" in capsys.readouterr().err


def test_errors_for_unknown_recipes_and_commands_suggest_the_nearest(capsys):
    assert agentloop("train", "no-such-recipe") == 2
    assert "There is no recipe 'no-such-recipe'" in capsys.readouterr().err
    assert agentloop("trian", "x") == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


def test_help_imports_no_command(capsys):
    import subprocess
    import sys

    code = (
        "import sys\nfrom agentloop.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'omegaconf', 'agentloop.cli.train'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert all(command in shown for command in ("demo", "train", "rollout", "tools"))


def test_ctrl_c_exits_with_130(sums, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("agentloop.trainer.run.train.train", interrupted)
    assert agentloop("train", sums, f"run.folder={sums}/run") == 130


def test_a_timeline_has_every_stage_and_episode(sums):
    folder = sums / "traced"
    arguments = ("run.steps=1", "run.loggers=[]", "eval.every=0", "profiler.timeline=true")
    assert agentloop("train", sums, f"run.folder={folder}", *arguments) == 0
    names = [event.get("name", "") for event in json.loads((folder / "timeline-0.json").read_text())]
    assert {"load", "rollout", "train", "publish", "save"} <= set(names)
    assert sum(name.startswith("episode") for name in names) == 12
