"""Types of options that a config gives to a function or class."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from agentloop.errors import UserError
from agentloop.registry.options import Config, as_annotated

if TYPE_CHECKING:
    from decimal import Decimal


class Judge:
    def __init__(self, timeout: float = 1.0, *, tags: Sequence[str] = (), of: Literal["a", "b"] | None = None) -> None:
        """Take options of some types."""


def judge(trajectory: Decimal, *, exact: Decimal = 1, loose=None, late: int = None, **others: int) -> float:  # noqa: RUF013
    return 0.0


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Judge, {"timeout": 2, "tags": ["think"], "of": "b"}),
        (Judge, {"of": None}),
        (judge, {"exact": "text", "loose": 3, "late": None, "unknown": "x"}),
        (judge, {"late": object()}),
    ],
)
def test_values_of_a_config_that_fit_are_accepted(function: Any, options: dict[str, Any]):
    as_annotated(function, options, of="reward")


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (Color, "red", Color.RED),
        (Path | None, "a/b", Path("a/b")),
        (Path | str, "a/b", "a/b"),
        (Point, {"x": 1}, Point(1)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (list[Color], ["red"], [Color.RED]),
        (float, 2, 2.0),
        (dict, {1: "a"}, {1: "a"}),
        (Iterable[int], [1, 2], [1, 2]),
        (Any, [1], [1]),
    ],
)
def test_values_of_a_config_get_the_annotated_type(annotation: Any, given: Any, expected: Any):
    def function(value) -> None: ...

    function.__annotations__["value"] = annotation
    converted = as_annotated(function, {"value": given}, of="reward")["value"]
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (Judge, {"timeout": "2"}, "'timeout' of the reward must be of type float, got str"),
        (Judge, {"timeout": True}, "float, got bool"),
        (Judge, {"tags": "think"}, r"Sequence\[str\], got str"),
        (Judge, {"of": "c"}, r"Literal\['a', 'b'\] \| None, got str"),
        (Judge, {"of": "c"}, "got str: input should be 'a' or 'b'. Set it"),
        (Judge, {"tags": ["think", 3]}, "got list: at 1, input should be a valid string. Set it"),
        (
            Judge,
            {"tags": "[think]"},
            r"\[think\]', which is not valid JSON: its texts need double quotes\. Set",
        ),
        (judge, {"loose": 3, "late": 1.5}, "'late' of the reward must be of type int, got float"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_option(function: Any, options: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        as_annotated(function, options, of="reward")


class _Inner(Config):
    steps: int = 1


class _Outer(Config):
    model: str
    inner: _Inner = _Inner()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"modl": "m", "model": "m"}, "_Outer has no key 'modl'. Did you mean 'model'?"),
        ({}, "_Outer has no 'model': set it."),
        (
            {"model": "m", "inner": {"steps": 1.5}},
            "inner.steps of _Outer is 1.5: input should be a valid integer, got a",
        ),
        ({"model": "m", "inner": {"stps": 1}}, "_Outer has no key 'inner.stps'. Correct or remove it."),
    ],
)
def test_wrong_values_of_a_config_object_are_named(values, error):
    with pytest.raises(UserError, match=re.escape(error)):
        _Outer(**values)


def test_a_replaced_value_of_a_config_object_is_named():
    with pytest.raises(UserError, match="_Outer has no key 'modl'"):
        _Outer(model="m").replace(modl="x")
