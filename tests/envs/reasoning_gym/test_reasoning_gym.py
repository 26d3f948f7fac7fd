"""The real package, in the interpreter that `agentloop envs install reasoning_gym` makes."""

import asyncio
import json
import subprocess
from collections import Counter

import pytest

from agentloop import play_script
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.reasoning_gym.env import ReasoningGym, program
from agentloop.envs.workers.pool import WorkerPool, close_pools
from agentloop.errors import UserError
from agentloop.types.trajectory import Trajectory

WITHOUT_AN_ANSWER = {
    "boxnet": "the package publishes no solution",
    "graph_color": "any colouring counts; one is in the metadata",
    "propositional_logic": "any conclusion counts; one is in the metadata",
    "rubiks_cube": "any solution counts; one is in the metadata",
    "rush_hour": "the package publishes no solution",
}
ITS_OWN_ORACLE = """
import json, reasoning_gym as rg
found = {"names": sorted(set(rg.factory.DATASETS) - {"composite"}), "curricula": sorted(rg.factory.CURRICULA)}
specs = [rg.composite.DatasetSpec("leg_counting", 1.0, {"size": 20, "seed": 8}),
         rg.composite.DatasetSpec("chain_sum", 3.0, {"size": 20, "seed": 9, "max_terms": 3})]
mixed = rg.create_dataset("composite", size=20, seed=7, datasets=specs)
found["mixed"] = [item["question"] for item in mixed]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def package(installed_env):
    return installed_env("reasoning_gym")


@pytest.fixture(scope="module")
def library(package):
    """What the library itself says about its data sets."""
    return json.loads(subprocess.run([package, "-c", ITS_OWN_ORACLE], capture_output=True, check=True).stdout)


async def scores(rows, answer, **options):
    async def one(row):
        turn = {"role": "assistant", "content": answer(row)}
        return await ReasoningGym(row, **options).score(Trajectory(messages=[*row["messages"], turn]))

    try:
        return await asyncio.gather(*map(one, rows))
    finally:
        close_pools()


def rows_of(**options):
    return load_dataset("agentloop.envs.reasoning_gym.env:tasks", options=options)


async def one_by_one(names, size):
    """The rows of each data set alone, all from one process."""
    pool = WorkerPool(program())
    try:
        return [
            row | {"messages": row["prompt"]}
            for name in names
            for row in await pool.rows({"datasets": {name: {}}, "size": size, "seed": 3, "system": None})
        ]
    finally:
        pool.close()


def test_oracle_answers_score_1_on_every_data_set_that_publishes_one(library):
    assert len(library["names"]) == 105
    rows = asyncio.run(one_by_one(library["names"], 3))
    assert Counter(row["dataset"] for row in rows) == dict.fromkeys(library["names"], 3)
    assert {row["dataset"] for row in rows if row["answer"] is None} == set(WITHOUT_AN_ANSWER)
    answered = [row for row in rows if row["answer"] is not None]
    found = asyncio.run(scores(answered, lambda row: f"So it is <answer>{row['answer']}</answer>."))
    assert {row["id"]: score for row, score in zip(answered, found, strict=True) if score != 1.0} == {}


def test_a_composite_has_the_questions_of_the_package(library):
    rows = rows_of(
        datasets={"leg_counting": None, "chain_sum": {"weight": 3.0, "config": {"max_terms": 3}}}, size=20, seed=7
    )
    assert [row["messages"][-1]["content"] for row in rows] == library["mixed"]
    assert set(asyncio.run(scores(rows, lambda row: f"<answer>{row['answer']}</answer>"))) == {1.0}


def test_levels_follow_the_curricula_of_the_package(package):
    numbers = [
        [sum(sign in "+-" for sign in row["messages"][-1]["content"].split()) for row in rows_of(**options)]
        for options in (
            {"datasets": "chain_sum", "size": 30, "level": 0},
            {"datasets": {"chain_sum": {"level": 8}}, "size": 30},
        )
    ]
    assert set(numbers[0]) == {1}
    assert max(numbers[1]) > 5
    rows = rows_of(datasets="chain_sum", size=5, level=8)
    assert set(asyncio.run(scores(rows, lambda row: f"<answer>{row['answer']}</answer>"))) == {1.0}


def test_an_episode_is_scored_by_the_answer_in_its_tag(package):
    (row,) = rows_of(datasets="leg_counting", size=1, seed=5)
    assert row["messages"][0]["role"] == "system"
    right, wrong = f"<answer>{row['answer']}</answer>", "<answer>no idea</answer>"
    outcomes = [play_script(ReasoningGym(row), [turn]).reward for turn in (right, wrong, row["answer"])]
    assert outcomes == [1.0, pytest.approx(0.0, abs=0.05), 0.0]
    trajectory = play_script(ReasoningGym(row, tag=None), [row["answer"]])
    assert (trajectory.reward, trajectory.metrics["reward/score/leg_counting"]) == (1.0, 1.0)


def test_a_row_of_another_version_fails_instead_of_being_judged(package):
    (row,) = rows_of(datasets="leg_counting", size=1)
    row["messages"][-1]["content"] += " And of a spider?"
    trajectory = play_script(ReasoningGym(row), ["<answer>4</answer>"])
    assert (trajectory.reward, trajectory.failures) == (None, {"judge": 1})
    assert "a different question than the row" in trajectory.error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"datasets": "leg_countin"}, "there is no data set leg_countin"),
        ({"datasets": {"chain_sum": {"levels": 2}}}, r"has no option 'levels'. Did you mean 'level'"),
        ({"datasets": {"chain_sum": {"config": {"terms": 2}}}}, "unexpected keyword argument 'terms'"),
        ({"datasets": ["gcd", "lcm", "gcd"]}, "`datasets` has 'gcd' several times: name it once"),
        (
            {"datasets": {"gcd": {"config": {"seed": 5}}}},
            "`config` of the data set 'gcd' has seed, which would",
        ),
        ({"datasets": {"gcd": {"weight": -1}}}, "`weight` of the data set 'gcd' must be a number above 0, got int -1"),
        ({"datasets": {"gcd": {"level": 1.5}}}, "`level` of the data set 'gcd' must be an integer of at least 0"),
        ({"datasets": "leg_counting", "level": 99}, "leg_counting has no level 99: its highest is 35"),
        ({"datasets": []}, "is empty"),
        ({"datasets": "chain_sum", "size": 0}, "must be at least 1"),
    ],
)
def test_unusable_options_are_named(package, options, says):
    with pytest.raises(UserError, match=says):
        rows_of(**options)
