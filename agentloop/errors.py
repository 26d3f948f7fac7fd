"""Errors of agentloop. This module imports nothing else of agentloop.

There are two families. The user can fix a `UserError`: its message is one paragraph that explains how, and the command
line prints it without a traceback. An `EpisodeError` ends at most one episode and is counted by its `FailureKind`: a
failed rollout is data, not a crash.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any


class FailureKind(StrEnum):
    """Component that caused a failure."""

    MODEL = "model"
    """The model wrote an invalid call: malformed, of an unknown tool, or with invalid arguments."""
    TOOL = "tool"
    """A tool raised an error or exceeded its time limit."""
    ENGINE = "engine"
    """Generation failed."""
    ENV = "env"
    """The environment raised an error in reset, step or close."""
    JUDGE = "judge"
    """The reward raised an error; the trajectory then has no reward, which differs from a reward of 0."""


class AgentLoopError(Exception):
    """Base of all errors that agentloop defines."""


class UserError(AgentLoopError, ValueError):
    """The input is invalid; the message explains how to fix it."""


class WrongTypeError(UserError):
    """An environment or a reward returned a value of a wrong type: a bug in its code, which ends the run."""


class EpisodeError(AgentLoopError):
    """Error that ends one episode."""

    kind: FailureKind


class EngineError(EpisodeError):
    """The engine failed to generate."""

    kind = FailureKind.ENGINE


class EnvError(EpisodeError):
    """The environment failed."""

    kind = FailureKind.ENV


class ToolError(EpisodeError):
    """Error that a tool raises on purpose; the model sees its message unchanged."""

    kind = FailureKind.TOOL


class SandboxError(AgentLoopError):
    """The sandbox itself failed, not the code in it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` with the closest known name, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def raised(error: BaseException) -> str:
    """Describe an error in user code with its location, as in `"KeyError: 'x' (tasks.py, line 12)"`."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = user_frames(error)
    if not frames or isinstance(error, SyntaxError):  # the text of a SyntaxError contains its location
        return text
    return f"{text} ({Path(frames[-1].tb_frame.f_code.co_filename).name}, line {frames[-1].tb_lineno})"


def named(function: Callable[..., Any]) -> str:
    """Return the name and location of a function or callable object: `"Weather.call (weather.py, line 12)"`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    function = inspect.unwrap(function)
    name = function.__qualname__.rpartition("<locals>.")[2]
    code = getattr(function, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else name


def shown(value: object) -> str:
    """Return the type of a value and the start of its text, for messages: `"list [1, 2]"`."""
    text = repr(value)
    return "None" if value is None else f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def user_frames(error: BaseException) -> list[TracebackType]:
    """Return the frames of a traceback that belong to the user's code, outermost first.

    These are the frames outside agentloop and the standard library. Frames of installed packages count only if there
    are no others.
    """
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
    """Convert an error in the user's code to a `UserError`: "`what`: KeyError: 'x' (tasks.py, line 12)."."""
    try:
        yield
    except AgentLoopError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {raised(error)}.") from error
