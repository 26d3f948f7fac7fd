"""The reference is that of the code, and complete."""

from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.cli.config import find, keys
from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from tests.support.reference_pages import commands, pages

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_generated_pages_are_those_of_the_code():
    for name, text in pages().items():
        assert (REFERENCE / name).read_text() == text, f"run scripts/reference: docs/reference/{name} is old"


def test_every_key_is_explained():
    assert [key.name for key in keys() if not key.help] == []


def test_every_section_of_a_run_is_listed():
    assert {key.name.partition(".")[0] for key in keys()} == set(RunConfig.model_fields)


def test_every_argument_and_option_is_explained():
    missing = [
        f"{name} {parameter.name}"
        for name, command in commands()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert missing == []
    assert all(command.help for _, command in commands())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learner.lr", ["learner.lr"]),
        ("learner.lora", ["learner.lora", "learner.lora.rank"]),
        ("env.tools.0.name", ["env.tools[].name"]),
        ("data.train", ["data.train", "data.train[].source"]),
        ("env.reward", ["env.reward", "env.reward[].name"]),
    ],
)
def test_a_key_or_a_section_is_found(name, expected):
    assert [key.name for key in find(name)][: len(expected)] == expected


def test_types_and_defaults_of_unions_and_lists():
    found = {key.name: key for key in keys()}
    assert found["data.eval"].type == "string or list of string or null"
    assert found["data.train[].levels"].default == "[]"
    assert {key.name: key.type for key in keys(FineTuningConfig)}["data.train"] == "string or list of string"


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(UserError, match=r"Did you mean 'learner.lr'"):
        find("lr")
    with pytest.raises(UserError, match=r"Did you mean 'learner.loss'"):
        find("learner.los")


def test_the_command_prints_type_default_and_meaning(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["config", "learner.mini_batches"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert (
        shown == "learner.mini_batches  (integer, at least 1; default 1)\n    Number of optimizer updates per batch.\n"
    )
