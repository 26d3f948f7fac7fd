"""The real package, in the interpreter that `agentloop envs install gem` makes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from agentloop import play_script
from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.gem.env import Gem
from agentloop.errors import UserError
from tests.support.play_all import play_all

CANNOT_BE_PLAYED = {
    "needs words of nltk, which it downloads": ("game:Hangman", "game:WordSearch", "game:Wordle"),
    "a mistake in the package": ("game:Crosswords-v0-random", "game:FifteenPuzzle-v0-random"),
}
SEED = 11  # as in library.py


@pytest.fixture(scope="module")
def package(installed_env):
    return installed_env("gem")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """A data set on this machine, in place of one of a hub."""
    folder = tmp_path_factory.mktemp("questions")
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "answers": [str(2 * n), "it"]} for n in range(9)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.fixture(scope="module")
def library(package, questions):
    """What happens in the package's own loop."""
    command = [package, Path(__file__).with_name("library.py"), questions]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def row_of(env, seed=SEED, **options):
    return {"id": env, "env": env, "seed": seed, "options": options}


def shown(observation, suffix):
    return f"{observation}\n{suffix}" if suffix and not observation.endswith("\n") else observation + suffix


def whole(message):
    thinking = message.get("reasoning_content")
    return message["content"] if thinking is None else f"<think>{thinking}</think>{message['content']}"


def test_episodes_equal_the_step_loop_of_the_package(library):
    left_out = {start for starts in CANNOT_BE_PLAYED.values() for start in starts}
    assert all(name.startswith(tuple(left_out)) for name in library["failed"])
    played = library["played"]
    assert all(any(name.startswith(start) for name in library["failed"]) for start in left_out)
    assert sum(name.startswith("game:") for name in played) == 24
    assert sum(name.startswith("rg:") for name in played) == 21
    envs = {name: Gem(row_of(name, **each["options"])) for name, each in played.items()}
    found = play_all(envs, {name: each["said"] for name, each in played.items()})
    for name, wanted in played.items():
        pairs = zip(wanted["heard"], wanted["said"], strict=False)
        messages = [text for heard, said in pairs for text in (shown(*heard), said)]
        said = [whole(message).replace("</think><", "</think> <") for message in found[name].messages]
        assert (name, said[: len(messages)]) == (name, messages)
        terminated, truncated = wanted["ends"]
        stop = "completed" if terminated else "env_truncated" if truncated else "engine_error"  # no more turns
        assert (name, found[name].stop_reason) == (name, stop)
        if terminated or truncated:
            assert len(said) == len(messages)
            assert (name, found[name].reward) == (name, pytest.approx(wanted["reward"]))
    assert {found["math:GSM8K"].reward, found["qa:HotpotQA"].reward} == {1.0}


def test_a_turn_without_an_action_ends_a_game(package):
    trajectory = play_script(Gem(row_of("game:GuessTheNumber-v0-easy")), ["I give up."])
    assert (trajectory.stop_reason, trajectory.reward) == ("completed", pytest.approx(-0.1))


def test_a_turn_that_a_limit_cuts_is_judged_as_in_the_package(package):
    trajectory = play_script(Gem(row_of("game:GuessTheNumber-v0-easy")), ["Let me think about it."], max_turn_tokens=5)
    assert (trajectory.stop_reason, trajectory.reward) == ("completed", pytest.approx(-0.1))


def test_an_episode_that_a_limit_ends_has_the_rewards_so_far(package):
    trajectory = play_script(Gem(row_of("game:Mastermind-v0-easy")), [r"\boxed{1 2}", "no"], max_turns=1)
    assert trajectory.stop_reason == "max_turns"
    assert trajectory.reward in (0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (row_of("game:GuessTheNumber-v0"), "did you mean game:GuessTheNumber-v0-"),
        (row_of("game:Hangman-v0-easy"), "nltk"),
        (row_of("math:GSM8K", dataset_name="/nowhere/at/all"), "nowhere"),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_failed_episode(package, row, says):
    trajectory = play_script(Gem(row), ["hm"])
    assert (trajectory.reward, trajectory.failures) == (None, {"env": 1})
    assert says in trajectory.error


def test_rows_take_the_environments_in_turn(package):
    options = {"envs": {"rg:leg_counting": {"size": 7}, "game:Sokoban-v0-easy": None}, "size": 3, "seed": 5}
    rows = load_dataset("agentloop.envs.gem.env:tasks", options=options, needs_prompt=False)
    assert [(row["env"], row["seed"], row["options"]) for row in rows] == [
        ("rg:leg_counting", 5, {"size": 7}),
        ("game:Sokoban-v0-easy", 6, {}),
        ("rg:leg_counting", 7, {"size": 7}),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"envs": "game:Sokoban"}, "GEM has no environment game:Sokoban: did you mean game:Sokoban-v0"),
        ({"envs": "game:Hangman-v0-easy"}, "nltk"),
        (
            {"envs": {"game:GuessTheNumber-v0-easy": {"max_turn": 2}}},
            " has no option max_turn: did you mean max_turns",
        ),
        ({"envs": {"math:GSM8K": {"levels": 2}}}, "math:GSM8K has no option levels, only answer_key, dataset"),
        ({"envs": ["rg:gcd", "rg:gcd"]}, "`envs` has 'rg:gcd' several times: name it once"),
        ({"envs": []}, "is empty"),
        ({"envs": "game:Sokoban-v0-easy", "size": 0}, "must be at least 1"),
    ],
)
def test_unusable_options_are_named(package, options, says):
    with pytest.raises(UserError, match=says):
        load_dataset("agentloop.envs.gem.env:tasks", options=options, needs_prompt=False)


def test_code_runs_only_where_it_is_allowed(package):
    for env in ("code:Taco8k", "eval:CodeContest"):
        with pytest.raises(UserError, match=f"{env} runs the model's code without a sandbox"):
            Gem(row_of(env))
    assert Gem(row_of("code:Taco8k"), allow_code=True).task["env"] == "code:Taco8k"
    with pytest.raises(UserError, match="has no env or no seed"):
        Gem({"id": "a"})
