"""Read the test cases of programming tasks in the formats of datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, frozen=True)
class ProgramCases:
    """Cases that each run the program once."""

    stdin: Sequence[str]
    stdout: Sequence[str]


@dataclass(slots=True, frozen=True)
class CallCases:
    """Cases that each call a function of the program, or a method of its class `Solution`."""

    function: str
    arguments: Sequence[Sequence[Any]]
    results: Sequence[Any]


@dataclass(slots=True, frozen=True)
class AssertCases:
    """Statements that run after the program and raise if it is wrong."""

    statements: Sequence[str]


Cases = ProgramCases | CallCases | AssertCases


def read_cases(raw: Any, *, most: int) -> Cases:
    """Return the first `most` cases of a row.

    `raw` is `{"inputs": [...], "outputs": [...]}`, with `fn_name` for calls (APPS, TACO, verl's PRIME data), a list of
    assert statements, or Python code that raises (MBPP, HumanEval). It may be a JSON string. Raises `ValueError` for
    anything else.
    """
    raw = _from_json(raw)
    if isinstance(raw, str) and raw.strip():
        return AssertCases([raw])
    if isinstance(raw, list | tuple) and raw and all(isinstance(each, str) for each in raw):
        return AssertCases(list(raw[:most]))
    if not isinstance(raw, Mapping) or not raw.get("inputs"):
        raise ValueError(
            "the row's tests must be {'inputs': [...], 'outputs': [...]} or assert statements, got "
            f"{type(raw).__name__} {str(raw)[:60]!r}"
        )
    inputs, outputs = raw["inputs"], raw.get("outputs") or ()
    if len(inputs) != len(outputs):
        raise ValueError(f"the row's tests have {len(inputs)} inputs and {len(outputs)} outputs")
    inputs, outputs = inputs[:most], outputs[:most]
    if raw.get("fn_name"):
        return CallCases(raw["fn_name"], [_arguments(each) for each in inputs], [_from_json(each) for each in outputs])
    return ProgramCases([_text(each) for each in inputs], [_text(each) for each in outputs])


def same_output(got: str, wanted: str) -> bool:
    """Return whether both texts have the same words in the same lines, ignoring empty lines at the end."""
    ours, theirs = [[line.split() for line in text.rstrip().splitlines()] for text in (got, wanted)]
    return ours == theirs


def _arguments(raw: Any) -> list[Any]:
    """Return the arguments from a list, or from one line of JSON each."""
    if isinstance(raw, str):
        return [_from_json(line) for line in raw.splitlines()]
    return list(raw) if isinstance(raw, list | tuple) else [raw]


def _text(raw: Any) -> str:
    return "\n".join(map(str, raw)) if isinstance(raw, list | tuple) else str(raw)


def _from_json(raw: Any) -> Any:
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        return raw
