"""Check the return values of environments' methods.

A value of a wrong type is a bug. It raises `WrongTypeError`, which ends the run, because dropping the episodes would
hide the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentloop.envs.base import BaseEnv, Observation
from agentloop.errors import WrongTypeError, named, shown
from agentloop.tools.toolset import Toolset
from agentloop.types.messages import ROLES, Message, is_content
from agentloop.types.returned_numbers import checked_number, scalar

_EXAMPLE = "Observation([{'role': 'user', 'content': ...}])"
_STEP = "(Observation, reward, terminated, truncated)"


def checked_messages(value: Any, method: Callable[..., Any]) -> list[Message]:
    """Return the messages of the `Observation` that `method` returned."""
    if isinstance(value, tuple) and value and isinstance(value[0], Observation):
        raise WrongTypeError(
            f"{named(method)} returned a tuple of {len(value)} values, as in gymnasium. Return the Observation alone."
        )
    if not isinstance(value, Observation):
        raise WrongTypeError(f"{named(method)} returned {shown(value)} as the observation. Return {_EXAMPLE}.")
    if isinstance(value.messages, str | Mapping) or not isinstance(value.messages, Iterable):
        raise WrongTypeError(
            f"{named(method)} returned an Observation of {shown(value.messages)}, not of a list. Return {_EXAMPLE}."
        )
    messages = list(value.messages)
    for position, message in enumerate(messages, 1):
        if not _is_message(message):
            raise WrongTypeError(
                f"{named(method)} returned {shown(message)} as message {position} of its Observation. A message is a "
                f"dict with a role ({', '.join(ROLES)}) and a content: a string, or a list of "
                "{'type': 'text', 'text': ...} and {'type': 'image', 'image': a PIL.Image.Image}."
            )
    return messages


def _is_message(message: object) -> bool:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        return False
    return is_content(message.get("content", "" if message.get("tool_calls") else None))


def checked_step(value: Any, method: Callable[..., Any]) -> tuple[list[Message], float, bool, bool]:
    """Check the return value of `step`. Return messages, reward, terminated and truncated."""
    if isinstance(value, tuple | list) and len(value) == 5:
        raise WrongTypeError(
            f"{named(method)} returned 5 values, as in gymnasium. Return 4, without the info: {_STEP}."
        )
    if not isinstance(value, tuple | list) or len(value) != 4:
        raise WrongTypeError(f"{named(method)} returned {shown(value)}. Return 4 values: {_STEP}.")
    observation, reward, *ends = value
    for name, end in zip(("terminated", "truncated"), ends, strict=True):
        if not isinstance(scalar(end), bool):
            raise WrongTypeError(f"{named(method)} returned {shown(end)} as {name}: it must be True or False.")
    return checked_messages(observation, method), checked_number(reward, method), bool(ends[0]), bool(ends[1])


def check_parts(env: BaseEnv) -> None:
    """Raise `WrongTypeError` if the task or the tools of an environment have a wrong type."""
    if not isinstance(env.task, Mapping):
        raise WrongTypeError(
            f"{type(env).__name__}.task is {shown(env.task)}. It must be the row, a dict: tools and rewards see it. "
            "Keep other objects in another attribute."
        )
    toolset = getattr(env, "toolset", None)
    if toolset is not None and not isinstance(toolset, Toolset):
        raise WrongTypeError(
            f"{type(env).__name__}.toolset is {shown(toolset)}. Set it to a Toolset (from agentloop import Toolset): "
            "Toolset([tool, ...])."
        )
