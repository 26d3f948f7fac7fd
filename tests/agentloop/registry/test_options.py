"""Types of options that a config gives to a function or class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest

from agentloop.errors import UserError
from agentloop.registry.options import check_types

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
    check_types(function, options, of="reward")


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (Judge, {"timeout": "2"}, "'timeout' of the reward must be of type float, got str"),
        (Judge, {"timeout": True}, "float, got bool"),
        (Judge, {"tags": "think"}, r"Sequence\[str\], got str"),
        (Judge, {"of": "c"}, r"Literal\['a', 'b'\] \| None, got str"),
        (judge, {"loose": 3, "late": 1.5}, "'late' of the reward must be of type int, got float"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_its_option(function: Any, options: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        check_types(function, options, of="reward")
