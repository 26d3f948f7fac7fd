"""Programs are run for real, in the sandbox of this machine."""

import asyncio
import json

import pytest

from agentloop.envs.rewards import load_reward
from agentloop.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judge():
    """Judge programs in one loop, with one sandbox: (program, tests) pairs -> rewards."""

    def run(pairs, episode, **options):
        async def all_of_them():
            reward = load_reward("code_tests", {"timeout": 5.0, **options})
            await reward.start()
            try:
                return [await reward(episode(fenced(program)), {"tests": tests}) for program, tests in pairs]
            finally:
                await reward.shutdown()

        return asyncio.run(all_of_them())

    return run


def fenced(program):
    return f"First:\n```\nnot this\n```\nThen:\n```python\n{program}\n```\nDone."


ADD = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
CALLS = {"fn_name": "add", "inputs": [[1, 2], "3\n4"], "outputs": [3, "7"]}
ASSERTS = ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]
GOOD = "def add(a, b):\n    return a + b\n"


def test_stdin_programs_are_judged(judge, episode):
    pairs = [
        ("print(sum(map(int, input().split())))", ADD),
        ("print(sum(map(int, input().split())), '')", json.dumps(ADD)),
        ("print(3)", ADD),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", ADD),
        ("syntax error", ADD),
        ("import time; print(3, flush=True); time.sleep(60)", {"inputs": ["1 2"], "outputs": ["3"]}),
    ]
    assert judge(pairs, episode, timeout=2.0) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_functions_and_assert_statements_are_judged(judge, episode):
    pairs = [
        (GOOD, CALLS),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", CALLS),
        (GOOD + "print('noise')\nif __name__ == '__main__':\n    input()", CALLS),
        ("def add(a, b):\n    return a * b", CALLS),
        ("def add(a, b):\n    return {a + b}", CALLS),
        (GOOD, ASSERTS),
        (GOOD, "\n".join(ASSERTS)),
        ("def add(a, b):\n    return 3", ASSERTS),
    ]
    assert judge(pairs, episode) == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]


CHEATS = [
    "import os; os._exit(0)",
    "import sys; sys.exit(0)",
    "def add(a, b):\n    import os; os._exit(0)",
    "def add(a, b):\n    raise SystemExit(0)",
    "import sys; job = sys.stdin.read(); print(job); sys.exit(0)",
    "open('done.jsonl', 'w').write('{\"case\": 0, \"result\": true}\\n' * 2); import os; os._exit(0)",
    "import atexit, os\natexit.register(os._exit, 0)",
    "print('ok\\nall tests passed')",
]


@pytest.mark.parametrize("partial", [False, True])
def test_programs_that_fake_success_fail(judge, episode, partial):
    pairs = [(cheat, tests) for cheat in CHEATS for tests in (ASSERTS, CALLS)]
    assert judge(pairs, episode, partial=partial) == [0.0] * len(pairs)


def test_objects_equal_to_everything_fail(judge, episode):
    yes = "class Yes(int):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Yes(0)"
    assert judge([(yes, CALLS)], episode) == [0.0]


def test_reward_may_be_the_share_of_passed_tests(judge, episode):
    half = "def add(a, b):\n    return a + b if a == 3 else 1 / 0"
    pairs = [
        (half, CALLS),
        (half, ASSERTS),
        ("a = input()\nprint(7 if a == '3 4' else 0)", ADD),
    ]
    assert judge(pairs, episode, partial=True) == [0.5, 0.5, 0.5]
    assert judge(pairs, episode) == [0.0, 0.0, 0.0]
    assert judge([("print(3)", ADD)], episode, max_tests=1) == [1.0]


async def test_answer_without_program_is_wrong(episode):
    trajectory = episode("I cannot write code.")
    assert await load_reward("code_tests")(trajectory, {"answer": ASSERTS}) == 0.0
    assert trajectory.metrics["reward/has_program"] == 0.0


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (None, "must be .* or assert statements, got NoneType"),
        ({"inputs": [], "outputs": []}, "or assert statements, got"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ([1, 2], "or assert statements, got"),
        ("", "or assert statements, got"),
    ],
)
async def test_rows_with_unreadable_tests_raise(episode, tests, words):
    with pytest.raises(ValueError, match=words):
        await load_reward("code_tests")(episode(fenced(GOOD)), {"tests": tests})


def test_unknown_levels_and_options_raise():
    with pytest.raises(UserError, match="Unknown sandbox level 'locall'"):
        load_reward("code_tests", {"sandbox": "locall"})
    with pytest.raises(UserError, match="timeout must be"):
        load_reward("code_tests", {"timeout": 0})
