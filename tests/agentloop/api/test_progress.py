import asyncio
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from agentloop.api.progress import RunProgress
from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.trainer.schedule.observers import Part, Stage
from agentloop.types.trajectory import Trajectory

CONFIG = validated(RunConfig, {"model": "m", "data": {"train": "t"}, "env": {"reward": "exact"}}, "test")
METRICS = {"reward/mean": 0.25, "rollout/tool_call_rate": 0.5, "learner/logprob_diff": 0.0123, "time/rollout": 1.5}


def watch(console):
    with RunProgress(console) as progress:
        progress.on_start(CONFIG, Path("runs/x"), 3)
        progress.on_stage(4, Stage.ROLLOUT)
        progress.on_trajectory(4, Trajectory())
        progress.on_step(4, METRICS)
        progress.on_stage(5, Stage.TRAIN)


def test_without_a_terminal_each_step_is_one_line():
    out = StringIO()
    watch(Console(file=out, width=40))
    assert out.getvalue().splitlines() == [
        "run folder runs/x, resuming after step 3",
        "step 4: reward 0.250, tool calls 50%, logprob diff 0.0123, rollout s 1.5",
        "model saved in runs/x/model; curves and trajectories: agentloop view runs/x",
    ]


def test_commands_can_be_copied_for_a_folder_with_spaces():
    out = StringIO()
    with RunProgress(Console(file=out, width=40)) as progress:
        progress.on_start(CONFIG, Path("my runs/x"), 3)
        progress.on_step(4, {"reward/mean": 0.0, "reward/equal_groups": 1.0})
    *_, hint, end = out.getvalue().splitlines()
    assert hint.endswith("View its trajectories: agentloop view 'my runs/x'")
    assert end == "model saved in my runs/x/model; curves and trajectories: agentloop view 'my runs/x'"


async def test_a_part_that_starts_slowly_is_shown_while_it_starts_and_when_it_is_ready():
    out = StringIO()
    with RunProgress(Console(file=out), slow_start_seconds=0.01) as progress:
        progress.on_part(Part.WORKERS, None)
        progress.on_part(Part.LEARNER, None)
        progress.on_part(Part.LEARNER, 0.001)
        await asyncio.sleep(0.1)
        assert out.getvalue().splitlines() == ["starting the workers ..."]
        progress.on_part(Part.WORKERS, 43.2)
    assert out.getvalue().splitlines()[1] == "workers ready after 43 s"


@pytest.mark.parametrize(
    ("checkpoints", "said"),
    [
        ((2, 4), "stopped after step 4; continue with: agentloop train x.yaml"),
        ((2,), "stopped after step 4, the newest checkpoint is of step 2; continue with: agentloop train x.yaml"),
        ((), "stopped after step 4, before the first checkpoint; continue with: agentloop train x.yaml"),
    ],
)
def test_a_run_that_ends_early_shows_its_last_step_and_checkpoint(tmp_path, checkpoints, said):
    for step in checkpoints:
        folder = tmp_path / "checkpoints" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        (folder / "state.json").touch()
    out = StringIO()
    progress = RunProgress(Console(file=out), continue_with="agentloop train x.yaml")
    progress.on_start(CONFIG, tmp_path, 3)
    progress.on_step(4, METRICS)
    progress.__exit__(KeyboardInterrupt, None, None)
    assert out.getvalue().splitlines()[-1] == said


def test_hints_are_printed_once():
    failed = Trajectory(task={"id": "16"}, error="the reward raised KeyError: 'anwser'")
    wrong = {
        "reward/mean": 0.0,
        "reward/equal_groups": 1.0,
        "rollout/calls": 2.0,
        "rollout/episodes": 4.0,
        "failures/model": 5.0,
    }
    out = StringIO()
    with RunProgress(Console(file=out, width=40)) as progress:
        progress.on_start(CONFIG, Path("runs/x"), 3)
        for step in (4, 5):
            progress.on_trajectory(step, failed)
            progress.on_step(step, wrong)
    assert out.getvalue().splitlines()[1:-1] == [
        "an episode of row 16 failed: the reward raised KeyError: 'anwser'",
        "step 4: reward 0.000",
        "step 4: all episodes of each task had the same reward, so they gave no learning signal. "
        "View its trajectories: agentloop view runs/x",
        "step 4: 5 of 8 tool calls were invalid: unknown tools, wrong arguments or malformed calls. "
        "View its trajectories: agentloop view runs/x",
        "step 5: reward 0.000",
    ]


@pytest.mark.parametrize(
    ("learner", "way"),
    [
        ({}, "raise run.steps, or run.epochs if that sets the length of the run"),
        (
            {"lr_schedule": "cosine"},
            "start a new run in another folder with model=runs/x, because learner.lr_schedule=cosine has ended",
        ),
        (
            {"lr_schedule": "linear", "total_updates": 200, "mini_batches": 2},
            "start a new run in another folder with model=runs/x, because learner.lr_schedule=linear has ended",
        ),
        (
            {"lr_schedule": "linear", "total_updates": 101},
            "raise run.steps, or run.epochs if that sets the length of the run",
        ),
    ],
)
def test_a_finished_run_says_how_to_train_further(learner, way):
    out = StringIO()
    with RunProgress(Console(file=out)) as progress:
        progress.on_start(CONFIG.replace(learner=learner), Path("runs/x"), 100)
    assert f"all 100 steps are done; to train further, {way}" in out.getvalue().splitlines()


def test_in_a_terminal_the_last_frame_shows_the_table_and_the_stage():
    out = StringIO()
    watch(Console(file=out, width=120, force_terminal=True, color_system=None))
    frame = out.getvalue()
    for text in ("reward", "0.250", "50%", "0.0123", "step 5: train", "4/100"):
        assert text in frame


def test_a_run_with_more_steps_than_asked_for_says_so():
    out = StringIO()
    with RunProgress(Console(file=out)) as progress:
        progress.on_start(CONFIG, Path("runs/x"), 130)
    assert "130, more than run.steps=100, steps are done; to train further, raise run.steps" in out.getvalue()
