import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

import agentloop as python_api
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


def test_dry_run_places_a_run_on_gpus_of_other_machines(sums, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    elsewhere = "placement={n_gpus: 16, nnodes: 2, gpu: H200, layout: separate, learner_gpus: 4}"
    assert agentloop("train", sums, "--dry-run", "--full", elsewhere) == 0
    shown = capsys.readouterr().out
    assert "separate: 16 GPUs on 2 nodes, 0 of them unused" in shown
    assert "12 of 1 GPUs each on their own GPUs (4 + 8 by node)" in shown
    assert "count: 12" in shown
    assert agentloop("train", sums, elsewhere) == 2
    assert "8 on each, but this node has 0 GPUs" in capsys.readouterr().err


def test_a_dry_run_in_the_folder_of_a_run_ends_as_a_start_would(sums, capsys):
    usual = (f"run.folder={sums}/run", "run.loggers=[]", "eval.every=0")
    assert agentloop("train", sums, *usual, "run.steps=2") == 0
    before = {path: path.stat().st_mtime_ns for path in (sums / "run").rglob("*")}
    capsys.readouterr()
    assert agentloop("train", sums, *usual, "run.steps=5", "--dry-run", "--resume") == 0
    assert "resumes          after step 2 of 5\n" in capsys.readouterr().out
    assert agentloop("train", sums, *usual, "learner.lr=0.5", "--dry-run") == 2
    error = capsys.readouterr().err
    assert "was started with other settings: learner.lr: " in error
    assert "set run.folder to a new folder" in error
    assert {path: path.stat().st_mtime_ns for path in (sums / "run").rglob("*")} == before


def test_resume_needs_a_checkpoint(sums, capsys):
    assert agentloop("train", sums, "--resume", f"run.folder={sums}/run") == 2
    assert "has no checkpoint to resume from" in capsys.readouterr().err
    assert agentloop("train", sums, "--resume", "--dry-run", f"run.folder={sums}/run") == 2
    assert "has no checkpoint to resume from" in capsys.readouterr().err
    assert agentloop("train", sums, "--resume") == 2
    assert "with this config has a checkpoint below" in capsys.readouterr().err


def test_resume_without_a_folder_takes_the_newest_run_of_the_config(sums, monkeypatch, capsys):
    monkeypatch.chdir(sums)
    usual = ("run.loggers=[]", "eval.every=0", "run.steps=1", "learner.lr_schedule=linear", "learner.warmup_updates=0")
    for number, lr in enumerate(["0.001", "0.001", "0.5"]):
        folder = f"runs/sums-20260101-00000{number}"
        assert agentloop("train", sums, f"learner.lr={lr}", f"run.folder={folder}", *usual) == 0
    (sums / "runs/sums-20260101-000009/checkpoints").mkdir(parents=True)  # it ended before its first checkpoint
    capsys.readouterr()
    assert agentloop("train", sums, "--resume", "learner.lr=0.001", *usual) == 0
    assert "run folder runs/sums-20260101-000001, resuming after step 1" in capsys.readouterr().out
    assert agentloop("train", sums, "--resume", "learner.lr=0.25", *usual) == 2


def test_the_config_of_a_run_resumes_it_where_it_lies(sums, monkeypatch, capsys):
    monkeypatch.chdir(sums)
    assert agentloop("train", sums, "run.folder=its/run", "run.steps=1", "run.loggers=[]", "eval.every=0") == 0
    monkeypatch.chdir(sums.parent)
    assert agentloop("train", sums / "its/run/config.yaml", "run.steps=2") == 0
    assert f"run folder {sums}/its/run, resuming after step 1" in capsys.readouterr().out
    (sums / "its").rename(sums / "moved ones")
    assert agentloop("train", sums / "moved ones/run", "run.steps=3") == 0
    assert f"run folder {sums}/moved ones/run, resuming after step 2" in capsys.readouterr().out
    python_api.train(sums / "moved ones/run", run={"steps": 4})
    assert f"run folder {sums}/moved ones/run, resuming after step 3" in capsys.readouterr().out
    assert agentloop("train", sums / "moved ones/run/config.yaml", "run.steps=1", f"run.folder={sums}/new") == 0
    assert f"run folder {sums}/new\n" in capsys.readouterr().out
    (sums / "moved ones/run/config.yaml").rename(sums / "copied.yaml")
    assert agentloop("train", sums / "copied.yaml", "run.folder=null", "--dry-run") == 0
    assert re.search(r"^folder +runs/copied-", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_prints_the_command_that_continues_it(sums, end, code):
    arguments = ["train", str(sums), "run.steps=100000", "run.save_every=1", "run.loggers=[]", "eval.every=0"]
    program = "from agentloop.cli import main; main()"
    command = [sys.executable, "-u", "-c", program, *arguments, f"run.folder={sums}/a run"]
    process = subprocess.Popen(command, cwd=sums, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        shown = ""
        while "step 2: " not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        assert shown.startswith("loading PyTorch and transformers ...\n")
        process.send_signal(end)
        rest, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    *_, last = rest.splitlines()
    assert process.returncode == code, rest
    found = re.fullmatch(r"stopped after step (\d+)(?:, [^;]+)?; continue with: agentloop (.*)", last)
    assert int(found[1]) >= 2
    assert shlex.split(found[2]) == [*arguments, f"run.folder={sums}/a run"]
    assert "Traceback" not in rest
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(found[2]), f"run.steps={found[1]}"])
    assert ended.value.code == 0


def test_errors_for_unknown_recipes_and_commands_suggest_the_nearest(capsys):
    assert agentloop("train", "no-such-recipe") == 2
    assert "There is no recipe 'no-such-recipe'" in capsys.readouterr().err
    assert agentloop("trian", "x") == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


def test_help_imports_no_command(capsys):
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
