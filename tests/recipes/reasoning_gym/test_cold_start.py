"""The cold start of SmolLM2 on questions of the real package."""

from agentloop.envs.reasoning_gym.env import tasks
from agentloop.recipes.reasoning_gym.cold_start import rows

DATASETS = {"needle_haystack": {"config": {"min_num_statements": 4, "max_num_statements": 4}}}


def test_a_share_of_the_answers_is_right_and_the_others_are_answers_too(installed_env):
    installed_env("reasoning_gym")
    options = {"datasets": DATASETS, "size": 400, "seed": 7, "system": "Be short."}
    questions = list(tasks(**options))
    found = list(rows(right_share=0.25, **options))
    assert [row["messages"][:-1] for row in found] == [row["prompt"] for row in questions]
    given = [row["messages"][-1]["content"] for row in found]
    assert set(given) <= {row["answer"] for row in questions}
    right = sum(answer == row["answer"] for answer, row in zip(given, questions, strict=True))
    assert 70 < right < 140
