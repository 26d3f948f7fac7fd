from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from agentloop.api.recipe import load_run_config
from agentloop.config.loading import ConfigOptions, ConfigPath, anchored, load_config
from agentloop.errors import UserError
from agentloop.registry.options import Config


class Tool(Config):
    name: ConfigPath
    seconds: float = 1.0


class Inner(Config):
    steps: int = Field(default=10, ge=1)
    lr: float = 1e-3
    mode: Literal["a", "b"] = "a"


class Outer(Config):
    options: ConfigOptions = Field(default_factory=dict)
    data: ConfigPath | None = None
    tools: list[Tool] = Field(default_factory=list)
    inner: Inner = Field(default_factory=Inner)
    folder: str | None = None


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_overrides_win_and_have_yaml_types(tmp_path):
    source = write(tmp_path, "inner:\n  steps: 3\n  lr: 1e-5\n")
    config = load_config(Outer, source, ["inner.steps=7", "tools=[{name: x, seconds: 2}]"])
    assert (config.inner.steps, config.inner.lr, config.tools) == (7, 1e-5, [Tool(name="x", seconds=2.0)])


def test_an_override_replaces_a_whole_mapping_and_reaches_into_lists(tmp_path):
    source = write(tmp_path, "options: {a: 1, b: 2}\ntools: [{name: x}, {name: y}]\n")
    config = load_config(Outer, source, ["options={c: 3}", "tools.1.name=./z"])
    assert config.options == {"c": 3}
    assert [tool.name for tool in config.tools] == ["x", f"{Path.cwd()}/z"]
    assert load_config(Outer, source, ["options.c=3"]).options == {"a": 1, "b": 2, "c": 3}
    assert [tool.name for tool in load_config(Outer, source, ["tools[1].name = z"]).tools] == ["x", "z"]


class Named(Config):
    name: str = "one"
    options: ConfigOptions = Field(default_factory=dict)
    reward: str | None = None
    reward_options: ConfigOptions = Field(default_factory=dict)


class Parts(Config):
    engine: Named = Field(default_factory=Named)
    loss: str = "ppo"
    loss_options: ConfigOptions = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("overrides", "engine", "reward", "loss"),
    [
        (["engine.name=two"], {}, {"tag": "b"}, {"clip": 1}),
        (["engine.options.size=2", "engine.name=two"], {"size": 2}, {"tag": "b"}, {"clip": 1}),
        (["engine.name=one"], {"device": "cpu"}, {"tag": "b"}, {"clip": 1}),
        (["engine.reward=exact", "loss=cispo"], {"device": "cpu"}, {}, {}),
        (["loss=ppo"], {"device": "cpu"}, {"tag": "b"}, {"clip": 1}),
        ({"loss": "cispo", "loss_options.clip": 2}, {"device": "cpu"}, {"tag": "b"}, {"clip": 2}),
    ],
)
def test_another_name_comes_without_the_options_of_the_one_before(overrides, engine, reward, loss):
    source = {
        "engine": {"name": "one", "options": {"device": "cpu"}, "reward": "tagged", "reward_options": {"tag": "b"}},
        "loss_options": {"clip": 1},
    }
    config = load_config(Parts, source, overrides)
    assert (config.engine.options, config.engine.reward_options, config.loss_options) == (engine, reward, loss)


def test_interpolation_of_keys_and_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTLOOP_TEST_DATA", "/data")
    source = write(tmp_path, "data: ${oc.env:AGENTLOOP_TEST_DATA}/t.jsonl\nfolder: run-${inner.steps}\n")
    config = load_config(Outer, source, ["inner.steps=4"])
    assert (config.data, config.folder) == ("/data/t.jsonl", "run-4")


def test_paths_start_at_the_file_and_those_of_the_shell_at_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    source = write(tmp_path, "data: train.jsonl\nfolder: ./out\ntools: [{name: 't/mine.py:Mine'}, {name: search}]\n")
    config = load_config(Outer, source)
    assert config.data == str(tmp_path / "train.jsonl")
    assert [tool.name for tool in config.tools] == [f"{tmp_path}/t/mine.py:Mine", "search"]
    assert config.folder == "./out"
    assert load_config(Outer, source, ["data=train.jsonl"]).data == str(tmp_path / "elsewhere" / "train.jsonl")


def test_paths_among_options_are_anchored_and_other_strings_are_not(tmp_path):
    source = write(tmp_path, "options: {script: s.py:f, inner: [./a, b], mark: '.', root: /, num: 3}")
    assert load_config(Outer, source).options == {
        "script": f"{tmp_path}/s.py:f",
        "inner": [f"{tmp_path}/a", "b"],
        "mark": ".",
        "root": "/",
        "num": 3,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("exact", "exact"),
        ("package.module:function", "package.module:function"),
        ("./model", "/base/model"),
        ("../model", "/model"),
        ("/abs/model", "/abs/model"),
        ("a/b.py:f", "/base/a/b.py:f"),
        ("d.parquet", "/base/d.parquet"),
        ("${oc.env:X}/d.jsonl", "${oc.env:X}/d.jsonl"),
        ("http://host/v1", "http://host/v1"),
        ("~/d.jsonl", str(Path("~/d.jsonl").expanduser())),
    ],
)
def test_what_is_a_path(value, expected):
    assert anchored(value, Path("/base")) == expected


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("inner: {stepz: 3}", [], ["'inner.stepz'", "'steps'"]),
        ("", ["inner.stps=3"], ["'inner.stps'", "'steps'"]),
        ("", ["iner.steps=3"], ["'iner'", "'inner'"]),
        ("tools: [{nam: x}]", [], ["'tools.0.nam'", "'name'"]),
        ("inner: {steps: many}", [], ["inner.steps", "'many'", "integer"]),
        ("inner: {steps: 0}", [], ["inner.steps", "0", "greater than or equal to 1"]),
        ("inner: {mode: c}", [], ["inner.mode", "'c'", "'a' or 'b'"]),
        ("inner: 5", [], ["inner is 5"]),
        ("tools: search", [], ["tools must be a list: tools=[search] in place of tools=search"]),
        (
            "actor_rollout_ref: {a: 1}",
            [],
            ["'actor_rollout_ref' is a key of verl: convert the config with `agentloop from-verl"],
        ),
        ("- a\n- b", [], ["keys at its top level"]),
        ("inner: {steps: [", [], ["cannot be read"]),
        ("inner: {steps: '${nothing}'}", [], ["cannot be resolved", "nothing"]),
        ("inner: {steps: '${oc.env:NOT_SET_AT_ALL}'}", [], ["NOT_SET_AT_ALL"]),
        ("", ["inner.steps"], ["Invalid override 'inner.steps'", "key=value"]),
        ("", ["inner.steps=[1"], ["'inner.steps=[1' cannot be read"]),
        ("inner: {steps: 3}", ["inner.steps.deep=1"], ["inner.steps"]),
        ("tools: [{name: x}]", ["tools.3.name=y"], ["tools"]),
        ("tools: [{name: x}]", ["tools.name=y"], ["'tools.name' goes through a list", "env.tools.0.name"]),
    ],
)
def test_bad_configs_are_one_paragraph_with_the_path(tmp_path, text, overrides, words):
    with pytest.raises(UserError) as caught:
        load_config(Outer, write(tmp_path, text), overrides)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no config file"):
        load_config(Outer, tmp_path / "nothing.yaml")


@pytest.mark.parametrize("key", ["eval.every", "limits.max_turns", "learner.lr", "data.max_prompt_tokens"])
def test_a_truth_value_is_not_a_number(key):
    with pytest.raises(UserError, match=rf"{key} is True: input should be a number\."):
        load_run_config("tiny", [f"{key}=true"])
