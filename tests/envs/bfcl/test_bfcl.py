"""The real package, in the interpreter that `agentloop envs install bfcl` makes."""

import ast
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from agentloop import play_script
from agentloop.envs.bfcl.env import CATEGORIES, Bfcl
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.errors import UserError
from agentloop.tools.function import tool
from agentloop.tools.toolset import Toolset
from tests.support.play_all import play_all


@pytest.fixture(scope="module")
def package(installed_env):
    return installed_env("bfcl")


@pytest.fixture(scope="module")
def data(package):
    code = "import bfcl_eval; print(bfcl_eval.__file__)"
    return (
        Path(subprocess.run([package, "-c", code], capture_output=True, check=True, text=True).stdout).parent / "data"
    )


@pytest.fixture(scope="module")
def solutions(data):
    """id -> turns of calls such as cd(folder='x')."""
    files = [data / "possible_answer" / f"BFCL_v4_multi_turn_{category}.json" for category in CATEGORIES]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {row["id"]: row["ground_truth"] for row in rows}


@pytest.fixture(scope="module")
def parameters(data):
    """function -> the names of its parameters in their order."""
    files = (data / "multi_turn_func_doc").glob("*.json")
    documents = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {each["name"]: list(each["parameters"]["properties"]) for each in documents}


def rows_of(**options):
    return load_dataset("agentloop.envs.bfcl.env:tasks", options=options, needs_prompt=False)


def call_of(text, parameters):
    """A turn of the model with the call of a solution."""
    call = ast.parse(text, mode="eval").body
    arguments = dict(zip(parameters[call.func.id], map(ast.literal_eval, call.args), strict=False))
    arguments |= {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return f"<tool_call>{json.dumps({'name': call.func.id, 'arguments': arguments})}</tool_call>"


def turns_of(calls, parameters):
    """The calls of each turn of the user in one turn of the model, and then a turn without any."""
    turns = ("".join(call_of(text, parameters) for text in turn) for turn in calls)
    return [said for turn in turns for said in ((turn, "Done.") if turn else ("Done.",))]


def without_the_last_call(calls):
    """The solution without the last call of its first turn that has any."""
    first = next(number for number, turn in enumerate(calls) if turn)
    return [turn[:-1] if number == first else turn for number, turn in enumerate(calls)]


def with_a_call_made_twice(calls):
    """The solution with the first call of its last turn made twice."""
    last = max(number for number, turn in enumerate(calls) if turn)
    return [[turn[0], *turn] if number == last else turn for number, turn in enumerate(calls)]


def verdicts_of_the_package(package, variants, solutions):
    asked = {
        f"{kind}-{name}": [name, [[[text] for text in turn] for turn in change(solutions[name])]]
        for kind, change in variants.items()
        for name in solutions
    }
    command = [package, Path(__file__).with_name("library.py")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_solutions_and_corrupted_ones_get_the_verdicts_of_the_package(package, solutions, parameters):
    variants = {"whole": list, "short": without_the_last_call, "twice": with_a_call_made_twice}
    verdicts = verdicts_of_the_package(package, variants, solutions)
    rows = {row["id"]: row for row in rows_of()}
    assert list(rows) == list(solutions)
    assert len(rows) == 800
    turns = {name: turns_of(variants[kind](solutions[task]), parameters) for name, kind, task in named(verdicts)}
    found = play_all({name: Bfcl(rows[task]) for name, _, task in named(verdicts)}, turns)
    assert [(name, each.error) for name, each in found.items() if each.failures or each.error] == []
    assert {name: each.reward for name, each in found.items()} == {name: float(v) for name, v in verdicts.items()}
    right = Counter(kind for name, kind, _ in named(verdicts) if found[name].reward == 1.0)
    assert right["whole"] == 800
    assert right["short"] == 0 < right["twice"] < 800


def named(verdicts):
    return [(name, *name.split("-", 1)) for name in verdicts]


def test_a_missed_function_is_offered_in_its_turn(package, solutions, parameters):
    (row,) = rows_of(categories="miss_func", stop=1)
    calls = solutions[row["id"]]
    assert calls[2] == []
    assert calls[3] == ["sort('final_report.pdf')"]
    env = Bfcl(row)
    trajectory = play_script(env, turns_of(calls, parameters))
    assert (trajectory.reward, trajectory.metrics["reward/turns_right"]) == (1.0, 1.0)
    assert "sort" not in [each["function"]["name"] for each in env.toolset.schemas]
    asked = [message["content"] for message in trajectory.messages if message["role"] == "user"]
    assert asked[3].splitlines()[-1] == "I have updated some more functions you can choose from. What about now?"
    assert json.loads(asked[3].splitlines()[0])["name"] == "sort"


def test_the_calls_of_a_turn_run_in_their_order(package):
    (row,) = rows_of(categories="base", stop=1)
    names = ("cd", {"folder": "document"}), ("mkdir", {"dir_name": "temp"}), ("ls", {})
    calls = "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in names
    )
    trajectory = play_script(Bfcl(row), [calls], max_turns=1)
    results = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert json.loads(results[2])["current_directory_content"] == ["final_report.pdf", "previous_report.pdf", "temp"]
    assert (trajectory.stop_reason, trajectory.reward) == ("max_turns", 0.0)  # a task that is not finished is wrong


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("_load_scenario", {"scenario": {}}, "There is no tool"),
        ("__init__", {}, "There is no tool"),
        ("get_balance_sheet", {}, "There is no tool"),
        ("cd", {"folder": "__import__('os').system('true')"}, "No such file or directory"),
        ("cd", {"folders": 1}, "Error during execution: "),
        ("cd", {"self": 1}, "Error during execution: "),
    ],
)
def test_only_documented_functions_run_and_nothing_is_evaluated(package, name, arguments, says):
    (row,) = rows_of(categories="base", stop=1)
    call = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    trajectory = play_script(Bfcl(row), [call], max_turns=1)
    assert says in trajectory.messages[-1]["content"]


def test_too_many_steps_in_one_turn_end_the_episode(package):
    (row,) = rows_of(categories="base", stop=1)
    call = '<tool_call>{"name": "pwd", "arguments": {}}</tool_call>'
    trajectory = play_script(Bfcl(row, max_steps=3), [call, call * 2, call, call, "Done."])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.num_turns) == ("env_truncated", 0.0, 4)


def test_a_worker_that_dies_fails_its_episode(package, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(Bfcl.worker.read_text() + "\n\nimport os\nEpisode.call = lambda *arguments: os._exit(3)\n")
    (row,) = rows_of(categories="base", stop=1)
    dying = type("Dying", (Bfcl,), {"worker": worker})
    trajectory = play_script(dying(row), ['<tool_call>{"name": "pwd", "arguments": {}}</tool_call>'])
    assert (trajectory.stop_reason, trajectory.reward, trajectory.failures) == ("env_error", None, {"env": 1})
    assert "it exited with code 3" in trajectory.error


def test_rows_are_chosen_by_category_and_number(package):
    rows = rows_of(categories=["miss_param", "long_context"], start=198)
    assert [row["id"] for row in rows] == [
        f"multi_turn_{category}_{number}" for category in ("miss_param", "long_context") for number in (198, 199)
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"categories": "bases"}, "BFCL has no category bases: use base, miss_func"),
        ({"start": 5, "stop": 5}, "must be 0 <= start < stop, got 5 and 5"),
    ],
)
def test_unusable_options_are_named(package, options, says):
    with pytest.raises(UserError, match=says):
        rows_of(**options)


def test_other_tools_and_other_rows_are_refused(package):
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    with pytest.raises(UserError, match=r"Leave env\.tools out"):
        Bfcl({"id": "multi_turn_base_0", "category": "base"}, toolset=Toolset([add]))
    with pytest.raises(UserError, match="has no category"):
        Bfcl({"id": "multi_turn_base_0"})
