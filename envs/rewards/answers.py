"""Rewards that compare the final text with the row's `answer`: 1.0 if it is correct, else 0.0."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.envs.rewards.base import answer_of, inline
from agentloop.envs.rewards.texts import inside, last_boxed

if TYPE_CHECKING:
    from agentloop.types.trajectory import Trajectory

_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BOX_CHARS = 100


@inline
def none(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    """Return 0 for every episode, for runs that learn only from something else, such as a teacher."""
    return 0.0


@inline
def exact(trajectory: Trajectory, task: Mapping[str, Any], *, tag: str | None = None) -> float:
    """Return 1.0 if the final text, or the content of its last `<tag>`, is the answer, ignoring outer white space."""
    found = [trajectory.final_text] if tag is None else inside(trajectory.final_text, tag)
    return float(bool(found) and found[-1].strip() == str(answer_of(task)).strip())


@inline
def contains(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    """Return 1.0 if the final text contains the answer as a separate word, in any case."""
    answer = re.escape(str(answer_of(task)).strip())
    return float(re.search(rf"(?<!\w){answer}(?!\w)", trajectory.final_text, re.IGNORECASE) is not None)


@inline
def last_number(trajectory: Trajectory, task: Mapping[str, Any], *, tolerance: float = 1e-6) -> float:
    """Return 1.0 if the last number in the final text equals the answer within a relative `tolerance`."""
    wanted = _last_number(str(answer_of(task)))
    if wanted is None:
        raise ValueError(f"the row's answer {task['answer']!r} has no number")
    found = _last_number(trajectory.final_text)
    return float(found is not None and (found == wanted or abs(found - wanted) <= tolerance * abs(wanted)))


@inline
def exact_match(trajectory: Trajectory, task: Mapping[str, Any], *, tag: str | None = None) -> float:
    """Return 1.0 if the final text, or the content of its last `<tag>`, matches one of the answers.

    Case, punctuation, articles and white space are ignored, as in SQuAD's exact match (arXiv 1606.05250). `answer` is a
    string, a list of strings, or Search-R1's `{"target": [...]}`.
    """
    if tag is None:
        return float(_normal(trajectory.final_text) in _golds(task))
    found = inside(trajectory.final_text, tag)
    return float(bool(found) and _normal(found[-1]) in _golds(task))


@inline
def search_r1(trajectory: Trajectory, task: Mapping[str, Any], *, format_reward: float = 0.0) -> float:
    """Return Search-R1's reward (arXiv 2503.09516): exact match of the last `<answer>` of the final turn.

    `format_reward` is the reward of a wrong answer inside the tags.
    """
    if not inside(trajectory.final_text, "answer"):
        return 0.0
    return exact_match(trajectory, task, tag="answer") or format_reward


@inline
def strict_box(trajectory: Trajectory, task: Mapping[str, Any]) -> float:
    r"""Return 1.0 if the last `\boxed{...}` in the last 100 characters of the final text equals the answer exactly.

    This is verl's `math_dapo` with `strict_box_verify`.
    """
    return float(last_boxed(trajectory.final_text[-_BOX_CHARS:]) == str(answer_of(task)))


def _golds(task: Mapping[str, Any]) -> set[str]:
    answer = answer_of(task)
    if isinstance(answer, Mapping):
        answer = answer.get("target")
    golds = {_normal(str(gold)) for gold in (answer if isinstance(answer, list | tuple) else [answer])} - {""}
    if not golds or answer is None:
        raise ValueError(f"no text can match the row's answer {task['answer']!r}")
    return golds


def _normal(text: str) -> str:
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
