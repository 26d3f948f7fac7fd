"""The choice of tasks and the number of steps follow from the prompts."""

import json
from pathlib import Path

import pytest

from agentloop.api.recipe import load_run_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.train import resolve_run

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[3] / "recipes"
CHECKPOINT = RECIPES / "tiny" / "checkpoint"


def _config(folder: Path, *overrides: str) -> RunConfig:
    rows = [{"prompt": " ".join(["word"] * words), "answer": "1"} for words in (1, 2, 40, 3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "more.jsonl").write_text(json.dumps(rows[0]) + "\n")
    settings = [f"data.train=[{folder}/rows.jsonl,{folder}/more.jsonl]", "data.train_options={}", "env.tools=[]"]
    return load_run_config("tiny", [*settings, f"data.eval={folder}/rows.jsonl", "data.eval_options={}", *overrides])


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path):
    everything = RolloutSetup.load(_config(tmp_path), CHECKPOINT)
    assert [len(row["messages"][0]["content"].split()) for row in everything.train] == [1, 2, 40, 3, 1]
    lengths = [len(everything.renderer.render_prompt(row["messages"])) for row in everything.train]
    assert lengths[0] < lengths[1] < lengths[3] < lengths[2]
    fitting = RolloutSetup.load(_config(tmp_path, f"data.max_prompt_tokens={lengths[3]}"), CHECKPOINT)
    assert [row["id"] for row in fitting.train] == ["0", "1", "3", "4"]
    assert [row["id"] for row in fitting.eval] == ["0", "1", "3"]
    with pytest.raises(UserError, match=rf"each of the 5 prompts is longer; the shortest has {lengths[0]} tokens"):
        RolloutSetup.load(_config(tmp_path, "data.max_prompt_tokens=1"), CHECKPOINT)


def test_a_dataset_of_which_no_prompt_fits_stops_the_start(tmp_path: Path):
    config = _config(tmp_path, "limits.max_tokens=4")
    with pytest.raises(UserError, match=r"limits\.max_tokens is 4, but each of the 5 prompts of data\.train"):
        RolloutSetup.load(config, CHECKPOINT)
    setup = RolloutSetup.load(_config(tmp_path), CHECKPOINT)
    shortest = len(setup.renderer.render_prompt(setup.train[0]["messages"]))
    assert RolloutSetup.load(_config(tmp_path, f"limits.max_tokens={shortest + 1}"), CHECKPOINT).train


def test_pictures_count_with_all_their_tokens():
    folder = RECIPES / "deepeyes" / "checkpoint"
    recipe, overrides = str(RECIPES / "deepeyes" / "tiny.yaml"), ["data.train_limit=1", "data.eval_limit=1"]
    longest = load_run_config(recipe, overrides).limits.max_tokens
    assert len(
        RolloutSetup.load(load_run_config(recipe, [*overrides, f"data.max_prompt_tokens={longest}"]), folder).train
    )
    # A prompt without its picture is shorter than this.
    with pytest.raises(UserError, match=r"each of the 1 prompts is longer"):
        RolloutSetup.load(load_run_config(recipe, [*overrides, "data.max_prompt_tokens=40"]), folder)


def test_epochs_become_steps_once_the_tasks_are_counted(tmp_path: Path):
    schedule = ["learner.lr_schedule=cosine", "learner.warmup_updates=3", "learner.mini_batches=2"]
    config = _config(tmp_path, "run={epochs: 4}", "algorithm.groups_per_step=3", *schedule)
    check_trainable(config)
    num_tasks = len(RolloutSetup.load(config, CHECKPOINT).train)

    def resolved(config: RunConfig, num_tasks: int) -> RunConfig:
        return resolve(config, Facts(model=CHECKPOINT, num_tasks=num_tasks)).given

    found = resolved(config, num_tasks)
    assert (found.run.steps, found.run.epochs) == (6, None)  # 4 x 5 tasks, 3 a step
    assert found.schedule_updates == 12
    # A resumed run has its steps already.
    assert resolved(found, 100) == found
    # A run has at least one step.
    assert resolved(config.replace(run=config.run.replace(epochs=0.1)), 5).run.steps == 1


def test_a_warmup_as_long_as_the_epochs_is_refused_once_the_tasks_are_counted(tmp_path: Path):
    schedule = ["learner.lr_schedule=cosine", "learner.warmup_updates=6"]
    config = _config(tmp_path, "run={epochs: 4}", "algorithm.groups_per_step=3", *schedule)
    with pytest.raises(UserError, match="warmup_updates is 6, but the run has 6 updates"):
        resolve_run(config, tmp_path / "run")


def test_steps_and_epochs_together_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"run\.steps is 7 and run\.epochs is 2: set one of them to null"):
        check_trainable(_config(tmp_path, "run={epochs: 2, steps: 7}"))


def test_null_steps_run_a_recipe_with_steps_by_epochs(tmp_path: Path):
    config = _config(tmp_path, "run={steps: 40}", "run.epochs=2", "run.steps=null", "algorithm.groups_per_step=5")
    check_trainable(config)
    assert resolve(config, Facts(model=CHECKPOINT, num_tasks=20)).given.run.steps == 8
    assert _config(tmp_path, "run.steps=null").run.steps == 100  # the default
