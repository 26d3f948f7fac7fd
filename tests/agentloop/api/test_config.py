import pytest

import agentloop
from agentloop.api.config import config_of
from agentloop.api.recipe import find_config, load_fine_tuning_config, load_run_config
from agentloop.errors import UserError


def reward(trajectory, task):
    return 1.0


@agentloop.tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def rows():
    yield {"prompt": "What is 1 plus 2?", "answer": "3"}


def test_a_section_sets_its_keys_and_a_dotted_key_replaces_its_value():
    config = config_of("tiny", {"run": {"steps": 3}, "engine.options": {"device": "cpu"}, "learner": {"lr": 0.5}})
    assert (config.run.steps, config.run.save_every) == (3, 20)
    assert config.engine.options == {"device": "cpu"}
    assert (config.learner.lr, config.learner.warmup_updates) == (0.5, 4)


def test_sections_may_be_objects_and_set_only_the_keys_that_they_were_given():
    config = config_of("tiny", {"learner": agentloop.LearnerConfig(lr=0.5), "run": agentloop.RunSettings(steps=3)})
    assert (config.learner.lr, config.learner.lr_schedule) == (0.5, "cosine")
    assert (config.run.steps, config.run.save_every) == (3, 20)


def test_classes_and_functions_stand_where_a_config_names_them():
    changes = {"env": {"tools": [add], "reward": reward}, "data": {"train": rows, "train_options": {}, "eval": None}}
    config = config_of("tiny", changes)
    assert [tool.name for tool in config.env.tools] == [f"{__name__}:add"]
    assert config.env.reward == f"{__name__}:reward"
    assert config.data.train == f"{__name__}:rows"
    direct = agentloop.EnvConfig(tools=[add], reward=[reward, {"name": "exact", "weight": 0.5}])
    assert direct.tools == config.env.tools
    assert [term.name for term in direct.reward] == [f"{__name__}:reward", "exact"]


def test_a_config_of_objects_is_the_config_of_plain_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = {"model": "./model", "data": {"train": "rows.jsonl"}, "env": {"reward": "exact"}, "run": {"steps": 7}}
    objects = agentloop.RunConfig(
        model="./model",
        data=agentloop.DataConfig(train="rows.jsonl"),
        env=agentloop.EnvConfig(reward="exact"),
        learner=agentloop.LearnerConfig(lr_schedule="linear"),
        run=agentloop.RunSettings(steps=7),
    )
    config = config_of(objects, {})
    assert config == config_of(plain, {"learner.lr_schedule": "linear"})
    assert config.model == str(tmp_path / "model")
    assert config.data.train == str(tmp_path / "rows.jsonl")
    longer = config_of(objects, {"run.steps": 20, "model": "./other"})
    assert (longer.run.steps, longer.model) == (20, str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"reward": lambda trajectory, task: 1.0}}, "at the top level of a module, a script or a notebook"),
        ({"data": {"train": [{"prompt": "x"}]}}, "Write a function that returns the rows"),
        ({"data": {"train": object()}}, "data.train is of type object, which a config cannot contain. Write a"),
        ({"lerner": {"lr": 1.0}}, "Did you mean 'learner'?"),
        ({"run": {"step": 1}}, "There is no key 'run.step'. Did you mean 'steps'?"),
        ({"run.steps": "many"}, "run.steps is 'many'"),
        ({"learner": agentloop.LearnerConfig(seed=3)}, "set run.seed"),
    ],
)
def test_what_a_config_cannot_hold_is_refused_with_the_fix(changes, message):
    with pytest.raises(UserError) as caught:
        config_of("tiny", changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "load"),
    [
        ("config.yaml", load_run_config),
        ("config.yaml", lambda source, given: config_of(source, dict(each.split("=") for each in given))),
        ("sft.yaml", lambda source, given: load_fine_tuning_config(source, given, "sft")),
    ],
)
def test_the_config_of_a_run_belongs_to_the_folder_in_which_it_lies(tmp_path, recipe, load):
    file = tmp_path / "a {run}" / "config.yaml"
    file.parent.mkdir()
    file.write_text(find_config("tiny", recipe).read_text())
    assert load(str(file), []).run.folder is None
    (file.parent / "run.lock").touch()
    assert load(str(file), []).run.folder == str(file.parent)
    assert load(str(file), ["run.folder=other"]).run.folder == "other"
