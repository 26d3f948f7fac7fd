"""The resolved config: made in one place, complete, and validated."""

import subprocess
import sys
from pathlib import Path

import pytest

import agentloop
from agentloop.config.loading import load_config
from agentloop.config.resolved import Facts, resolve
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.rendering.builtin import template_text

ROOT = Path(agentloop.__file__).parents[1]
PACKAGES = ("agentloop", "boxes", "envs", "recipes", "sandboxes", "tools", "trainer")


def load(sums, *overrides):
    return load_config(RunConfig, sums / "config.yaml", overrides)


def test_models_become_local_folders_and_the_profiler_is_the_learners(sums):
    config = load(sums, "learner.reference=${model}", "profiler.steps=[2]", "critic.lr=0.25")
    found = resolve(config, Facts(model=Path("/m"), folder=Path("/run")))
    assert (found.learner.model, found.learner.reference) == ("/m", "/m")
    assert found.learner.recording.folder == "/run"
    assert (found.critic_learner.model, found.critic_learner.lr, found.critic_learner.recording) == ("/m", 0.25, None)
    assert found.process_reward_learner.reference == "/m"
    assert found.given == config


def test_epochs_become_steps_in_the_form_that_the_run_keeps(sums):
    config = load(sums, "run={epochs: 4}", "algorithm.groups_per_step=3", "learner.lr_schedule=cosine")
    given = resolve(config, Facts(model=Path("m"), num_tasks=5)).given
    assert (given.run.steps, given.run.epochs, given.schedule_updates) == (6, None, 6)


def test_the_learner_has_the_temperature_the_seed_and_the_length_of_the_run(sums):
    settings = ["sampling.temperature=0.7", "run.seed=3", "run.steps=20", "learner.mini_batches=4"]
    learner = resolve(load(sums, *settings), Facts(model=Path("m"))).learner
    assert (learner.temperature, learner.seed, learner.total_updates) == (0.7, 3, 80)
    own = load(sums, "learner.total_updates=9", "sampling.temperature=0")
    learner = resolve(own, Facts(model=Path("m"), learns=False)).learner
    assert (learner.temperature, learner.total_updates) == (1.0, 9)
    assert resolve(load(sums), Facts(model=Path("m"))).learner.total_updates == load(sums).run.steps


def test_the_learner_saves_models_with_the_chat_template_of_the_run(sums):
    learner = resolve(load(sums, "rendering.chat_template=builtin:hermes"), Facts(model=Path("m"))).learner
    assert learner.chat_template == template_text("builtin:hermes")
    assert resolve(load(sums), Facts(model=Path("m"))).learner.chat_template is None


def test_an_engine_on_gpus_gives_workers_their_gpus(sums):
    engine = "engine={name: vllm, options: {tensor_parallel_size: 2, pipeline_parallel_size: 2}}"

    def gpus(*overrides, has_gpus=True):
        return resolve(
            load(sums, "workers.kind=ray", *overrides), Facts(model=Path("m"), has_gpus=has_gpus)
        ).workers.gpus

    assert gpus(engine) == 4
    assert gpus(engine, "workers.gpus=0.5") == 0.5
    assert gpus(engine, has_gpus=False) == gpus() == 0


def test_only_engines_beside_a_learner_sleep_and_take_its_dtype(sums):
    def options(name, **facts):
        config = load(sums, f"engine={{name: {name}}}", "placement.sleep=true", "learner.compute_dtype=bfloat16")
        return resolve(config, Facts(model=Path("m"), **facts)).engine.options

    assert options("hf")["dtype"] == "bfloat16"
    assert options("sglang")["sleeps"] is True
    alone = {"model": "m", "max_model_len": 512}
    assert options("hf", learns=False) == options("sglang", learns=False) == alone


def test_a_replaced_value_is_validated_and_what_was_not_set_stays_unset(sums):
    config = load(sums, "workers.kind=ray")
    assert config.workers.replace(count=3).model_fields_set == {"kind", "count"}
    with pytest.raises(UserError, match=r"count of WorkersConfig is 0: input should be greater than or equal to 1\."):
        config.workers.replace(count=0)


def test_nothing_copies_a_config_without_validation():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 300
    assert [str(path) for path in files if "model_copy(" in path.read_text(encoding="utf-8")] == []


@pytest.mark.slow
def test_the_config_imports_nothing_heavy():
    code = (
        "import sys, agentloop.config.run, agentloop.config.resolved\n"
        "heavy = {'torch', 'ray', 'transformers', 'vllm', 'datasets'} & sys.modules.keys()\n"
        "trainer = [name for name in sys.modules if name.startswith('agentloop.trainer')]\n"
        "print(sorted(heavy), trainer)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"
