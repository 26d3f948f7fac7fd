"""Errors of agentloop. A leaf: imports nothing of agentloop.

Two families. A `UserError` is something that the user can put right: its message is one paragraph that says how, and
the command line prints it without a traceback. An `EpisodeError` ends at most one episode and is counted by its
`FailureKind`: a bad rollout is data, not a crash.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum


class FailureKind(StrEnum):
    """Whose fault a failure is."""

    MODEL = "model"
    """The model wrote something that cannot be used: a malformed call, an unknown tool, a bad argument."""
    TOOL = "tool"
    """A tool raised or outlived its deadline."""
    ENGINE = "engine"
    """Generation failed."""
    ENV = "env"
    """The environment raised in reset, step or close."""
    JUDGE = "judge"
    """The reward raised; the trajectory has no reward, which is not a reward of 0."""


class AgentLoopError(Exception):
    """Base of all errors that agentloop raises on purpose."""


class UserError(AgentLoopError, ValueError):
    """The input cannot be used; the message says what to do about it."""


class EpisodeError(AgentLoopError):
    """Something that ends one episode."""

    kind: FailureKind


class EngineError(EpisodeError):
    kind = FailureKind.ENGINE


class EnvError(EpisodeError):
    kind = FailureKind.ENV


class ToolError(EpisodeError):
    """Raised by a tool on purpose: the message is shown to the model as it stands."""

    kind = FailureKind.TOOL


class SandboxError(AgentLoopError):
    """The sandbox itself failed, as opposed to the code in it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest known name, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""
