import json
import subprocess
import sys
import sysconfig

import pytest

from agentloop.errors import UserError
from agentloop.recipes.smollm2.tasks import program, traces

EVERY_PROGRAM_PRINTS_ITS_ANSWER = """
import contextlib, io, json, site, sys
site.addsitedir(sys.argv[1])  # our packages
from agentloop.recipes.smollm2 import tasks

counts = dict.fromkeys(tasks.DATASETS, 0)
for row, task in zip(tasks.traces(20, seed=7), tasks.rows(20, seed=7), strict=True):
    assert row["messages"][:2] == task["prompt"]
    name = task["id"].split("-")[0]
    counts[name] += 1
    *start, last = row["messages"]
    assert last["content"] == f"<answer>{task['answer']}</answer>"
    if len(start) == 4:
        code = start[2]["tool_calls"][0]["function"]["arguments"]["code"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        assert printed.getvalue().strip() == start[3]["content"] == task["answer"], (name, code)
print(json.dumps(counts))
"""


@pytest.mark.parametrize(
    ("dataset", "metadata", "printed"),
    [
        ("chain_sum", {"expression": "4 - 1 - 7"}, "-4\n"),
        ("products", {"expression": "12 * 12"}, "144\n"),
        ("gcd", {"numbers": [12, 18]}, "6\n"),
        ("lcm", {"numbers": [4, 6]}, "12\n"),
        ("count_primes", {"start": 1, "end": 11}, "5\n"),
        ("count_bits", {"number": 7}, "3\n"),
        ("simple_equations", {"variable": "x", "equation": "3*x + 2 = 11"}, "3\n"),
    ],
)
def test_a_program_prints_the_answer(dataset, metadata, printed, capsys):
    exec(program(dataset, metadata), {})
    assert capsys.readouterr().out == printed


def test_logic_is_answered_without_a_program():
    assert program("syllogism", {}) is None


def test_without_reasoning_gym_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match="pip install reasoning-gym"):
        next(traces(1, seed=0))


def test_every_program_for_questions_of_reasoning_gym_prints_the_answer(python_with):
    python = python_with("reasoning-gym", "reasoning-gym==0.1.25")
    checked = subprocess.run(
        [python, "-c", EVERY_PROGRAM_PRINTS_ITS_ANSWER, sysconfig.get_path("purelib")],
        capture_output=True,
        text=True,
        check=True,
    )
    counts = json.loads(checked.stdout)
    assert all(count >= 15 for count in counts.values()), counts
