"""Read the command that starts verl from a command line or a shell script.

`shell` runs the script in a sandbox, so variables, arrays, conditions and arguments have the values of a real run.
Programs are not started: they appear to succeed with empty output (`$(nvidia-smi -L)`), and a note tells if a setting
depends on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.from_verl.shell.running import Record, follow

_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "reward", "reward_model", "trainer")
"""Sections of verl's config; a command that sets a key in one of them starts verl."""


@dataclass(slots=True, frozen=True)
class Launch:
    """One command that starts verl."""

    module: str
    """Module or path of the file that Python runs."""
    overrides: tuple[str, ...]
    """Hydra overrides as written: key=value, +key=value, ~key."""
    config_path: str | None = None
    config_name: str | None = None
    """Hydra options with these names; None: the configs of the module."""


def launches(commands: Sequence[Sequence[str]]) -> list[Launch]:
    """Return the launches among commands."""
    return [launch for command in commands if (launch := launch_of(command)) is not None]


def launch_of(command: Sequence[str]) -> Launch | None:
    """Read a command with any launcher (ray job submit, torchrun, uv run, srun); None if it does not start verl."""
    words = list(command)
    # In `srun bash -c "python ..."` one word is a whole command.
    for word in words:
        if "actor_rollout_ref." in word and re.match(r"\S+\s+\S", word) and " -m " in f" {word}":
            return launch_of(word.split())
    overrides = [word for word in words if _is_override(word)]
    if not any(re.split(r"[.=]", word.lstrip("+~"))[0] in _SECTIONS for word in overrides):
        return None
    options = dict(_options(words))
    return Launch(_module(words), tuple(overrides), options.get("path"), options.get("name"))


def _is_override(word: str) -> bool:
    return re.match(r"(\+\+?)?[\w@/.]+=|~[\w@/.]+", word) is not None


def _module(words: Sequence[str]) -> str:
    for place, word in enumerate(words[:-1]):
        if word == "-m":
            return words[place + 1]
    files = (word for word in words if word.endswith(".py") and not _is_override(word))
    return next(files, "verl.trainer.main_ppo")


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield Hydra's --config-path and --config-name, in all spellings."""
    for place, word in enumerate(words):
        if found := re.fullmatch(r"(?:--config-|-c)(p|path|n|name)(?:=(.*))?", word, re.DOTALL):
            value = found[2] if found[2] is not None else "".join(words[place + 1 : place + 2])
            yield {"p": "path", "n": "name"}.get(found[1], found[1]), value


@dataclass(slots=True, frozen=True)
class Script:
    """Commands that a launch script would start."""

    launches: tuple[Launch, ...]
    complaint: str
    """Why the script could not be followed to its end; empty if it could."""
    notes: tuple[str, ...]
    """Values that only a real run knows, which a person should check."""


def read_script(script: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> Script:
    """Run a script with its arguments in a sandbox, with only `variables` as its environment.

    Raises `UserError` if the file cannot be read, or if this machine has no sandbox.
    """
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {script} cannot be read: {error}. Check its path.") from error
    record = follow(text, str(script), arguments, variables)
    found = tuple(launches(record.commands))
    notes = [*record.notes, *_unknown(found[:1], launches(record.marked)[:1], record)]
    notes += [
        f"The script reads {name}, which your environment sets but --env does not pass. Add --env {name} if "
        "the run needs it."
        for name in sorted((_read_first(text) & set(os.environ)) - set(variables) - _COMMON)
    ]
    return Script(found, record.complaint, tuple(dict.fromkeys(notes)))


def _unknown(known: Sequence[Launch], marked: Sequence[Launch], record: Record) -> Iterator[str]:
    """Yield a note for each setting that contains a mark of an unknown value."""
    for launch, with_marks in zip(known, marked, strict=True) if len(known) == len(marked) else ():
        for override in with_marks.overrides:
            key = record.plain(override).partition("=")[0]
            is_empty = record.plain(override) in launch.overrides
            for description in record.unknowns(override):
                if is_empty:
                    yield f"{key} is empty in place of {description}."
                elif not description.startswith("$"):
                    yield f"{key} depends on {description}."


_COMMON = {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"}
"""Variables that scripts extend for programs."""


def _read_first(text: str) -> set[str]:
    """Return the variables that a script reads before, or on, the first line that sets them."""
    read: set[str] = set()
    is_set: set[str] = set()
    for line in text.splitlines():
        read |= set(re.findall(r"\$\{?(\w+)", line)) - is_set
        is_set |= set(re.findall(r"(?<![\w.])(\w+)=", line))
    return read
