"""The table for users of TRL names arguments that TRL has, and keys that we have."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from agentloop.cli.config import keys

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from" / "trl.md").read_text()


def rows(heading: str) -> list[tuple[str, str]]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0].partition("| `loss_type` | `learner` |")[0]
    return re.findall(r"^\| (`.*?`) \| (`.*?`) \|", section, re.MULTILINE)


@pytest.mark.slow  # imports trl
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trl_has_the_arguments():
    from trl import GRPOConfig, GRPOTrainer

    known = {
        "Arguments of GRPOTrainer": set(inspect.signature(GRPOTrainer.__init__).parameters),
        "Arguments of GRPOConfig": {field.name for field in dataclasses.fields(GRPOConfig)},
    }
    for heading, names in known.items():
        listed = {name for left, _ in rows(heading) for name in re.findall(r"`(\w+)`", left)}
        assert len(listed) > 5
        assert listed - names == set(), heading
    example = set(re.findall(r"(\w+)=", PAGE.partition("GRPOConfig(")[2].partition(")")[0]))
    assert example
    assert example <= known["Arguments of GRPOConfig"]


def test_we_have_the_keys():
    known = {key.name for key in keys()}
    listed = {
        name
        for heading in ("GRPOTrainer", "GRPOConfig")
        for _, right in rows(f"Arguments of {heading}")
        for name in re.findall(r"`([\w.]+)`", right)
    }
    assert len(listed - {"learner"}) > 40
    assert {name for name in listed if "." in name or name == "model"} - known == set()
