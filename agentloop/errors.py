"""Errors of agentloop. This module imports nothing else of agentloop.

There are two families. The user can fix a `UserError`: its message is one paragraph that explains how, and the command
line prints it without a traceback. An `EpisodeError` ends at most one episode and is counted by its `FailureKind`: a
failed rollout is data, not a crash.
"""

from __future__ import annotations

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
    """Code of the user, such as a reward or a loss, returned a value of a wrong type: a bug, which ends the run."""


class EpisodeError(AgentLoopError):
    """Error that ends one episode."""

    kind: FailureKind


class EngineError(EpisodeError):
    """The engine failed to generate."""

    kind = FailureKind.ENGINE


class EnvError(EpisodeError):
    """The environment failed."""

    kind = FailureKind.ENV


class UnscoredError(AgentLoopError, LookupError):
    """An environment gave an episode no reward: none of its turns was scored. That does not count as 0."""


class ToolError(EpisodeError):
    """Error that a tool raises on purpose; the model sees its message unchanged."""

    kind = FailureKind.TOOL


class SandboxError(AgentLoopError):
    """The sandbox itself failed, not the code in it."""


_MOST_SUGGESTIONS = 3
_MEANT_SHARE = 0.6
"""Share of a name's letters that a shorter known name must stand for: 'save_steps' does not mean 'steps'."""
_SHORTEST_BEGINNING = 3
"""Number of letters from which the beginning of a word stands for the word."""
_LETTERS_PER_EDIT = 3
_MOST_EDITS = 2


def see_readme(missing: Path) -> str:
    """Return `" /recipe/README.md may say how to make it."` for a missing file of a recipe, or an empty string."""
    for folder in missing.absolute().parents:
        if (folder / "config.yaml").is_file():
            readme = folder / "README.md"
            return f" {readme} may say how to make it." if readme.is_file() else ""
    return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` with the known name that `name` probably stands for, or an empty string.

    A known name fits if it differs by at most two typing errors, one in three letters; or else if the words of one name
    begin words of the other: 'temp' and 'clip' stand for 'temperature' and 'grad_clip'. Similar letters alone do not
    fit. If several names fit equally well, the text has up to three.
    """
    candidates = list(dict.fromkeys(known))
    letters = _letters(name)
    mistyped = {}
    for each in candidates:
        edits, length = _edits(letters, _letters(each)), max(len(letters), len(_letters(each)))
        if edits <= min(length // _LETTERS_PER_EDIT, _MOST_EDITS):
            mistyped[each] = edits
    if mistyped:
        return f" Did you mean {min(mistyped, key=mistyped.__getitem__)!r}?"
    fitting = [each for each in candidates if _begun(name, each) or _begun(each, name) >= _MEANT_SHARE]
    fewest = min((len(_words(each)) for each in fitting), default=0)
    found = [repr(each) for each in fitting if len(_words(each)) == fewest]
    return f" Did you mean {' or '.join(found)}?" if 0 < len(found) <= _MOST_SUGGESTIONS else ""


def _letters(name: str) -> str:
    return "".join(_words(name)) or name


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _begun(name: str, whole: str) -> float:
    """Return the share of the letters of `whole` in words that the words of `name` begin; 0 if one begins none."""
    left = _words(whole)
    begun = 0
    for word in _words(name):
        is_long = len(word) >= _SHORTEST_BEGINNING
        fits = [each for each in left if each == word or (is_long and each.startswith(word))]
        if not fits:
            return 0.0
        left.remove(fits[0])
        begun += len(fits[0])
    return begun / max(len(_letters(whole)), 1)


def _edits(first: str, second: str) -> int:
    """Return the number of letters to insert, remove, replace or swap with the next that turn one word into another."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(second, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and (a, first[i - 2]) == (second[j - 2], b):
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]


_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")


def raised(error: BaseException) -> str:
    """Describe an error in user code with its location, as in `"KeyError: 'x' (tasks.py, line 12)"`.

    The location is before the message of an error of agentloop, because its last sentence is the fix (`with_fix`).
    """
    text = described(error)
    frames = user_frames(error)
    if not frames or isinstance(error, SyntaxError):  # the text of a SyntaxError contains its location
        return text
    where = f"({Path(frames[-1].tb_frame.f_code.co_filename).name}, line {frames[-1].tb_lineno})"
    name = type(error).__name__
    return f"{name} {where}: {error}" if isinstance(error, AgentLoopError) and str(error) else f"{text} {where}"


def described(error: BaseException) -> str:
    """Return an error as `"KeyError: 'x'"`, or its name alone if it has no message or cannot write it."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # a class of the user whose `__str__` raises
        return name
    return f"{name}: {message}" if message else name


def with_fix(text: str, fix: str) -> str:
    """Add a fix to the text of an error. A text that ends as a sentence is of a `UserError`, which has its own fix."""
    return text if text.endswith(".") else f"{text}. {fix}"


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
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {raised(error)}.") from error
