"""Runs that draw their tasks from several sources."""

import json

import pytest

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.episodes.setup import RolloutSetup
from agentloop.errors import UserError
from agentloop.trainer.run.train import train

SOURCES = """data={train: [
    {source: sums.py:tasks, name: kept, weight: 2, options: {num: 7}, keep: [0.1, 0.9]},
    {source: sums.py:tasks, name: levels, levels: [{num: 3}, {num: 5}], raise_at: 0.1}
], eval: null, train_options: {}}"""


def config_of(sums, *overrides):
    sources = SOURCES.replace("sums.py", f"{sums}/sums.py").replace("\n", "")
    return load_config(RunConfig, sums / "config.yaml", [sources, "eval.every=0", *overrides])


@pytest.mark.slow
async def test_a_resumed_run_draws_as_if_it_had_never_stopped(sums):
    whole = await train(config_of(sums, "run.steps=6"), sums / "whole")
    await train(config_of(sums, "run.steps=2"), sums / "parts")
    parts = await train(config_of(sums, "run.steps=6"), sums / "parts")
    lines = [
        [{key: value for key, value in line.items() if not key.startswith("time/")} for line in each.read_metrics()]
        for each in (whole, parts)
    ]
    assert lines[0] == lines[1]
    assert [line["source/kept/groups"] for line in lines[0]] == [2.0] * 6
    assert [line["source/levels/groups"] for line in lines[0]] == [1.0] * 6
    assert 0 < lines[0][-1]["source/kept/reward"] < 1
    assert lines[0][-1]["source/levels/level"] == 0.0, "six groups of 32 are no reason to rise"
    state = json.loads((sums / "parts/checkpoints/step_000006/state.json").read_text())
    assert [each["num_drawn"] for each in state["sampler"]["sources"]] == [12, 6]


@pytest.mark.slow
def test_tasks_of_each_level_are_loaded(sums):
    setup = RolloutSetup.load(config_of(sums), sums / "model")
    assert [(each.name, each.levels) for each in setup.sources] == [
        ("kept", [range(7)]),
        ("levels", [range(7, 10), range(10, 15)]),
    ]
    assert len(setup.train) == 15


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("[{source: a.jsonl}, {source: ./b/a.jsonl}]", "two sources of data.train are named a: give each a `name`"),
        ("[{source: a.jsonl, keep: [0.9, 0.1]}]", "keep no task: write the lower one first"),
        ("[{source: a.jsonl, weight: 0}]", "greater than 0"),
        ("[{source: a.jsonl, raise_at: 0.5}]", "raise_at is 0.5, but `levels` is empty"),
        ("[{sorce: a.jsonl}]", "a config names a dataset and does not contain rows"),
        ("[{source: a.jsonl, wieght: 2}]", "wieght"),
    ],
)
def test_unusable_sources_are_named(sums, data, says):
    with pytest.raises(UserError, match=says):
        load_config(RunConfig, sums / "config.yaml", [f"data={{train: {data}}}"])


def test_options_belong_to_each_source(sums):
    with pytest.raises(UserError, match="write `options` and `limit` in each"):
        load_config(RunConfig, sums / "config.yaml", ["data={train: [{source: a.jsonl}], train_options: {num: 3}}"])
