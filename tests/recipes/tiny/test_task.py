import contextlib
import io

import pytest

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.recipes.tiny.task import ASKED, OPERATIONS, held_out_rows, is_held_out, reward, train_rows
from agentloop.types.limits import StopReason
from agentloop.types.trajectory import Trajectory


def numbers(row):
    return tuple(int(word.strip("?.")) for word in row["prompt"][0]["content"].split() if word.strip("?.").isdigit())


def test_rows_load_as_a_dataset():
    rows = load_dataset("agentloop.recipes.tiny.task:train_rows", options={"num_rows": 30, "seed": 3})
    assert len({row["id"] for row in rows}) == 30
    assert rows == load_dataset("agentloop.recipes.tiny.task:train_rows", options={"num_rows": 30, "seed": 3})
    assert rows != load_dataset("agentloop.recipes.tiny.task:train_rows", options={"num_rows": 30, "seed": 4})


def test_held_out_pairs_are_not_in_the_training_data():
    trained = {numbers(row) for row in train_rows(5000)}
    held_out = {numbers(row) for row in held_out_rows(500)}
    assert not trained & held_out
    assert all(is_held_out(*pair) for pair in held_out)
    assert not any(is_held_out(*pair) for pair in trained)


def test_only_the_right_program_prints_the_answer():
    programs = {operation.noun: operation.code for operation in OPERATIONS}
    for row in held_out_rows(60):
        a, b = numbers(row)
        printed = {}
        for noun, program in programs.items():
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(program.format(a=a, b=b), {})
            printed[noun] = output.getvalue()
        assert [noun for noun, text in printed.items() if text == row["answer"] + "\n"] == [row["operation"]]


def test_operations_are_equally_frequent():
    asked = [row["operation"] for row in held_out_rows(40)]
    assert {noun: asked.count(noun) for noun in asked} == {operation.noun: 8 for operation in ASKED}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 42.", 1.0),
        ("So the answer is 42", 1.0),
        ("The answer is 421.", 0.0),
        ("The answer is -42.", 0.0),
        ("The answer is 42. The answer is 43.", 0.0),
        ("42", 0.0),
        ("", 0.0),
    ],
)
def test_reward_requires_an_exact_answer(text, expected):
    trajectory = Trajectory(messages=[{"role": "assistant", "content": text}], stop_reason=StopReason.COMPLETED)
    assert reward(trajectory, {"answer": "42"}) == expected


def test_truncated_episode_has_no_answer():
    message = {"role": "assistant", "content": "The answer is 42."}
    assert reward(Trajectory(messages=[message], stop_reason=StopReason.MAX_TURNS), {"answer": "42"}) == 0.0
