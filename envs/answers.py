"""Built-in rewards: the final answer against the row's `answer`. 1.0 where it is right, 0.0 where not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentloop.trajectory import Trajectory

_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def exact(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    """The final text is the answer, white space around it aside."""
    return float(trajectory.final_text.strip() == str(_answer(task)).strip())


def contains(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    """The answer stands somewhere in the final text, as a word of its own; case does not count."""
    answer = re.escape(str(_answer(task)).strip())
    return float(re.search(rf"(?<!\w){answer}(?!\w)", trajectory.final_text, re.IGNORECASE) is not None)


def last_number(trajectory: Trajectory, task: Mapping[str, Any], *, tolerance: float = 1e-6) -> float:
    """The last number of the final text equals the answer, to a relative `tolerance`."""
    wanted = _numbers(str(_answer(task)))
    if not wanted:
        raise ValueError(f"the row's answer {task['answer']!r} has no number")
    found = _numbers(trajectory.final_text)
    return float(bool(found) and abs(found[-1] - wanted[-1]) <= tolerance * max(1.0, abs(wanted[-1])))


def _answer(task: Mapping[str, Any]) -> Any:
    if "answer" not in task:
        raise LookupError(f"the row has no 'answer' column, only {sorted(task)}")
    return task["answer"]


def _numbers(text: str) -> list[float]:
    return [float(match.replace(",", "")) for match in _NUMBER.findall(text)]
