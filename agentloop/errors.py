"""Errors of agentloop. A leaf: imports nothing of agentloop.

Two families. A `UserError` is something that the user can put right: its message is one paragraph that says how, and
the command line prints it without a traceback. An `EpisodeError` ends at most one episode and is counted by its
`FailureKind`: a bad rollout is data, not a crash.
"""

from __future__ import annotations

import difflib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType


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


_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def raised(error: BaseException) -> str:
    """`"KeyError: 'x' (tasks.py, line 12)"`: what somebody else's code raised, and where in it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = user_frames(error)
    if not frames or isinstance(error, SyntaxError):  # which says itself where
        return text
    return f"{text} ({Path(frames[-1].tb_frame.f_code.co_filename).name}, line {frames[-1].tb_lineno})"


def user_frames(error: BaseException) -> list[TracebackType]:
    """The part of a traceback that is neither agentloop's nor Python's, and of no installed package where there is any
    other; outermost first."""
    frames = []
    at = error.__traceback__
    while at is not None:
        name, file = at.tb_frame.f_globals.get("__name__", ""), at.tb_frame.f_code.co_filename
        is_ours = name.startswith("agentloop.") and not name.startswith("agentloop.recipes.")
        if not is_ours and (_INSTALLED.search(file) or not file.startswith(_PYTHON)):
            frames.append(at)
        at = at.tb_next
    own = [frame for frame in frames if not _INSTALLED.search(frame.tb_frame.f_code.co_filename)]
    return own or frames


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Around code of the user's: what it raises becomes a `UserError`, "`what`: KeyError: 'x' (tasks.py, line 12)."."""
    try:
        yield
    except AgentLoopError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {raised(error)}.") from error
