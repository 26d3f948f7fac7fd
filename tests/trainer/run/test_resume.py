import json

import pytest

from agentloop.config.loading import validated
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.run.checkpoints import FORMAT
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.run.resume import changed_keys, open_run
from agentloop.trainer.schedule.queue import QueueState


def config(**sections):
    base = {"model": "m", "data": {"train": "t.jsonl"}, "env": {"reward": "exact"}}
    return validated(RunConfig, base | sections, "test")


def changes(**sections):
    before, after = config(), config(**sections)
    return changed_keys(before.model_dump(mode="json"), after.model_dump(mode="json"))


@pytest.mark.parametrize(
    "sections",
    [
        {"run": {"steps": 500, "folder": "elsewhere", "save_every": 1, "keep_last": 9}},
        {"engine": {"name": "vllm", "options": {"x": 1}, "max_concurrency": 4}},
        {"data": {"train": "t.jsonl", "eval": "e.jsonl"}, "eval": {"every": 3}},
        {"learner": {"device": "cpu", "token_budget": 99999}},
        {"learner": {"ranks": 4, "nodes": 2, "shard": "node"}},
        {"learner": {"in_process": False}, "workers": {"kind": "ray"}},
        {"workers": {"kind": "ray", "count": 3, "max_restarts": 9}, "placement": {"sleep": True}},
        {"env": {"reward": "exact", "reward_options": {"sandbox": "http://b:8080"}}},
        {"profiler": {"timeline": True, "steps": [3]}},
    ],
)
def test_settings_that_do_not_affect_learning_may_change(sections):
    assert changes(**sections) == []


def test_a_sandbox_daemon_may_move():
    def of(url, timeout=5):
        tool = {"name": "code_interpreter", "options": {"sandbox": url, "timeout": timeout}}
        return config(env={"reward": "exact", "tools": [tool]}).model_dump(mode="json")

    assert changed_keys(of("http://a:8080"), of("http://b:8080")) == []
    assert len(changed_keys(of("http://a:8080"), of("http://a:8080", timeout=6))) == 1


@pytest.mark.parametrize(
    "key",
    ["limits", "limits.max_answered_calls", "algorithm.group_size", "rendering", "learner.skip_checks",
     "sampling.top_p", "algorithm.overlong.penalty", "algorithm.overlong", "learner.corrections.0.options"],
)  # fmt: skip
def test_a_key_that_is_newer_than_a_run_had_its_default(key):
    settings = {
        "algorithm": {"overlong": {"max_sampled_tokens": 100, "buffer": 20}} if key.count(".") == 2 else {},
        "learner": {"corrections": ["truncate"]},
    }
    before, after = (config(**settings).model_dump(mode="json") for _ in range(2))
    *sections, name = key.split(".")
    place = before
    for section in sections:
        place = place[int(section) if section.isdigit() else section]
    del place[name]
    assert changed_keys(before, after) == []


def test_a_newer_key_with_another_value_is_a_change():
    before = config().model_dump(mode="json")
    del before["limits"]["max_answered_calls"]
    after = config(limits={"max_answered_calls": 3}).model_dump(mode="json")
    assert changed_keys(before, after) == ["limits.max_answered_calls: 16 -> 3"]


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ("overlong", {"max_sampled_tokens": 100, "buffer": 200, "penalty": 1.0}),
        ("dynamic_sampling", {"max_rounds": 3, "oversampling": 1.0}),
    ],
)
def test_only_a_setting_that_is_refused_today_may_be_dropped(section, setting, caplog):
    """Check one that the config refuses, and one that `check_trainable` refuses."""
    given = {
        "data": {"train": "t.jsonl"},
        "algorithm": {"advantage": "reinforce_pp", "group_size": 1},
        "engine": {"name": "hf"},
    }
    after = config(**given).model_dump(mode="json")
    check_trainable(validated(RunConfig, after, "test"))
    before = config(**given, learner={"lr": 1e-5}).model_dump(mode="json")
    before["algorithm"][section] = setting
    assert [each.split(":")[0] for each in changed_keys(before, after)] == ["learner.lr"]
    assert f"algorithm.{section}" in caplog.text


def test_a_buffer_above_the_limit_is_refused():
    with pytest.raises(UserError, match=r"overlong\.buffer is 200 but max_sampled_tokens is 100"):
        config(algorithm={"overlong": {"max_sampled_tokens": 100, "buffer": 200}})


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"learner": {"lr": 0.5}}, ["learner.lr: 1e-06 -> 0.5"]),
        ({"env": {"reward": "contains"}}, ["env.reward: 'exact' -> 'contains'"]),
        ({"limits": {"max_turns": 3}}, ["limits.max_turns: 16 -> 3"]),
        ({"algorithm": {"group_size": 2}}, ["algorithm.group_size: 8 -> 2"]),
        ({"run": {"seed": 1}}, ["run.seed: 0 -> 1"]),
        ({"run": {"steps": 7}, "learner": {"lr_schedule": "linear"}}, ["run.steps: 100 -> 7"]),
        ({"env": {"reward": "exact", "reward_options": {"k": 2}}}, ["env.reward_options.k: not set -> 2"]),
    ],
)
def test_changed_settings_that_affect_learning_are_named(sections, named):
    assert set(named) <= set(changes(**sections))


def test_a_schedule_that_ends_with_the_run_is_the_reason_to_refuse_more_steps(tmp_path):
    cosine = {"lr_schedule": "cosine"}
    folder, _ = open_run(config(learner=cosine, run={"steps": 4}), tmp_path)
    folder.append_metrics({"step": 1})
    with pytest.raises(UserError, match=r"run\.steps: 4 -> 8\..* learner\.lr_schedule=cosine ends with the") as caught:
        open_run(config(learner=cosine, run={"steps": 8}), tmp_path)
    assert f"start a new one in another folder with model={tmp_path}." in str(caught.value)
    with pytest.raises(UserError) as caught:
        open_run(config(learner=cosine | {"lr": 0.5}, run={"steps": 4}), tmp_path)
    assert "lr_schedule" not in str(caught.value)


def test_the_folder_of_the_run_to_train_further_is_quoted_for_the_shell(tmp_path):
    root = tmp_path / "räy ö 1"
    folder, _ = open_run(config(learner={"lr_schedule": "cosine"}, run={"steps": 4}), root)
    folder.append_metrics({"step": 1})
    with pytest.raises(UserError) as caught:
        open_run(config(learner={"lr_schedule": "cosine"}, run={"steps": 8}), root)
    assert f"with 'model={root}'. A run" in str(caught.value)


def test_the_number_of_steps_may_change_if_the_schedule_has_its_own_length(tmp_path):
    own = {"lr_schedule": "cosine", "total_updates": 8}
    folder, _ = open_run(config(learner=own, run={"steps": 4}), tmp_path)
    folder.append_metrics({"step": 1})
    open_run(config(learner=own, run={"steps": 8}), tmp_path)


def test_run_folder_with_other_settings_is_refused_and_unchanged(tmp_path):
    folder, checkpoint = open_run(config(), tmp_path)
    assert checkpoint is None
    folder.append_metrics({"step": 1})
    with pytest.raises(UserError, match=r"learner\.lr: 1e-06 -> 0\.5"):
        open_run(config(learner={"lr": 0.5}), tmp_path)
    assert folder.read_metrics() == [{"step": 1}]


def test_a_run_that_failed_before_its_first_step_takes_new_settings(tmp_path):
    folder, _ = open_run(config(env={"reward": "exact", "tools": ["serach"]}), tmp_path)
    (folder.trajectories / "step_000001.jsonl.gz").touch()
    _, checkpoint = open_run(config(learner={"lr": 0.5}), tmp_path)
    assert checkpoint is None
    assert folder.read_config()["learner"]["lr"] == 0.5
    assert list(folder.trajectories.iterdir()) == []


def test_a_run_that_only_evaluated_takes_new_settings(tmp_path):
    folder, _ = open_run(config(), tmp_path)
    folder.append_metrics({"step": 0, "eval/reward/mean": 0.5})
    _, checkpoint = open_run(config(learner={"lr": 0.5}), tmp_path)
    assert checkpoint is None
    assert folder.read_config()["learner"]["lr"] == 0.5
    assert folder.read_metrics() == []


def test_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    folder, _ = open_run(config(), tmp_path)
    folder.append_metrics({"step": 1})
    _, checkpoint = open_run(config(), tmp_path)
    assert checkpoint is None
    assert folder.read_metrics() == []


def save(folder, step):
    path = folder.checkpoints / f"step_{step:06d}"
    path.mkdir()
    state = {"step": step, "sampler": {}, "config": folder.read_config(), "queue": QueueState().as_json()}
    (path / "state.json").write_text(json.dumps(state | {"format": FORMAT}))


def test_a_run_that_trains_further_has_no_model_until_its_new_end(tmp_path):
    folder, _ = open_run(config(run={"steps": 3}), tmp_path)
    save(folder, 3)
    folder.model.mkdir()
    open_run(config(run={"steps": 3}), tmp_path)
    assert folder.model.is_dir()
    open_run(config(run={"steps": 4}), tmp_path)
    assert not folder.model.exists()


def test_surplus_checkpoints_make_room_before_the_next_one_is_written(tmp_path):
    folder, _ = open_run(config(run={"keep_last": 3}), tmp_path)
    for step in (1, 2, 3):
        save(folder, step)
    _, checkpoint = open_run(config(run={"keep_last": 1}), tmp_path)
    assert checkpoint is not None
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000003"]


def test_settings_that_may_change_do_not_change_the_length_of_episodes(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 1000}')

    def opened(**sections):
        return open_run(config(model=str(tmp_path / "model"), **sections), tmp_path / "run")

    folder, _ = opened(learner={"token_budget": 2000})
    folder.append_metrics({"step": 1})
    with pytest.raises(UserError, match=r"the most tokens of an episode: 1000 -> 500 \(the smallest"):
        opened(learner={"token_budget": 500})
    with pytest.raises(UserError, match="the most tokens of an episode: 1000 -> 600"):
        opened(engine={"options": {"max_model_len": 600}}, learner={"token_budget": 2000})
    opened(learner={"token_budget": 1500}, engine={"options": {"max_model_len": 1000}})
