"""Read the command that starts verl from a command line or a shell script.

`shell` runs the script in a sandbox, so variables, arrays, conditions and arguments have the values of a real run.
Programs are not started: they appear to succeed with empty output (`$(nvidia-smi -L)`), and a note tells if a setting
depends on it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentloop.errors import UserError
from agentloop.trainer.from_verl.shell.running import Record, follow, short

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
    others: tuple[str, ...] = ()
    """Words after the module that are none of these."""


def launches(commands: Sequence[Sequence[str]]) -> list[Launch]:
    """Return the launches among commands."""
    return [launch for command in commands if (launch := launch_of(command)) is not None]


def launch_of(command: Sequence[str]) -> Launch | None:
    """Read a command with any launcher (ray job submit, torchrun, uv run, srun); None if it does not start verl."""
    words = list(command)
    for word in words:
        if "actor_rollout_ref." in word and len(word.split()) > 1 and " -m " in f" {word}":
            return next(iter(launches(list(_inner_commands(word)))), None)
    if not any(_sets_verl(word) for word in words):
        return None
    module, begin = _program(words)
    overrides: list[str] = []
    others: list[str] = []
    options: dict[str, str] = {}
    arguments = iter(words[begin:])
    for word in arguments:
        if option := _OPTION.fullmatch(word):
            name = {"p": "path", "n": "name"}.get(option[1], option[1])
            options[name] = option[2] if option[2] is not None else next(arguments, "")
        elif _is_override(word):
            overrides.append(word)
        elif word.strip("\\ \t\r"):  # else it is of an unset "$VARIABLE", or of a "\ " at the end of a line
            others.append(word)
    return Launch(module, tuple(overrides), options.get("path"), options.get("name"), tuple(others))


_OPTION = re.compile(r"(?:--config-|-c)(p|path|n|name)(?:=(.*))?", re.DOTALL)
"""Hydra's --config-path and --config-name, in all spellings."""


def _is_override(word: str) -> bool:
    return re.match(r"(\+\+?)?\w[\w@/.:-]*=|~[\w@/.]+", word) is not None


def _sets_verl(word: str) -> bool:
    return _is_override(word) and _names_verl(word)


def _names_verl(word: str) -> bool:
    return re.split(r"[.=]", word.lstrip("+~"))[0] in _SECTIONS


def _inner_commands(line: str) -> Iterator[list[str]]:
    """Split one word that is a command line, as in `srun bash -c "cd verl; python ..."`, into commands."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|<>\n"):
                if word[0] in "<>" and words and words[-1].isdecimal():  # the 2 of 2>&1
                    words.pop()
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote is missing
        yield line.split()
    yield words


def _program(words: Sequence[str]) -> tuple[str, int]:
    """Return the module or file that Python runs, and the place of its first argument."""
    first = next(place for place, word in enumerate(words) if _sets_verl(word))
    for place in range(first - 1, -1, -1):
        word = words[place]
        if not _is_override(word) and (word.endswith(".py") or words[place - 1 : place] == ["-m"]):
            return word, place + 1
    begin = next(place for place, word in enumerate(words) if _names_verl(word))
    return "verl.trainer.main_ppo", 0 if _is_override(words[0]) else begin


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
    found, marked = (launches(_programs(commands)) for commands in (record.commands, record.marked))
    notes = [*record.notes, *_unknown(found[:1], marked[:1], record), *_lost(record.commands)]
    notes += _depending(found[0], record) if found else ()
    if found and not marked:  # it ended in another branch, or took too long on a busy machine
        notes.append(
            "The script was not followed to this command a second time, with marks for unknown values: check every "
            "setting that uses a program or an unset variable."
        )
    if any(command[0] == "xargs" and launch_of(command) for command in record.commands):
        notes.append("The script passes words to verl through xargs, which are not read: add them to this command.")
    notes += [
        f"The script reads {name}, which your environment sets but --env does not pass. Add --env {name} if "
        "the run needs it."
        for name in sorted((_read_first(text) & set(os.environ)) - set(variables) - _COMMON)
    ]
    return Script(tuple(found), record.complaint, tuple(dict.fromkeys(notes)))


def _programs(commands: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [command for command in commands if not _is_override(command[0])]


def _lost(commands: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a note for settings of a script that are not part of a command."""
    words = [word for command in commands if _is_override(command[0]) for word in command]
    lost = [word.partition("=")[0] for word in words if _is_override(word)]
    if lost:
        yield (
            f"{_some(lost)}: these lines of the script belong to no command, because the line before ends it, with a "
            "comment, or with something after its \\. They reach neither verl nor this file."
        )


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


def _depending(launch: Launch, record: Record) -> Iterator[str]:
    """Yield a note if settings are others when programs print something, or when they fail."""
    values = _values(launch)
    keys: list[str] = []
    for commands in record.variants:
        for variant in launches(_programs(commands))[:1]:
            others = {key: value for key, value in _values(variant).items() if not record.unknowns(value)}
            marked = _values(variant).keys() - others.keys()
            keys += [key for key in values | others if key not in marked and values.get(key) != others.get(key)]
    started = [words for words in _programs(record.variants[0]) if launch_of(words) is None]
    programs = [record.plain(short(words)) for words in started if words[0] not in _SILENT]
    if keys and programs:
        yield (
            f"{_some(keys)} would be set otherwise if programs printed something or failed. They do not run here, and "
            f"count as successful without output: check {_some(programs)}."
        )


_SILENT = {"mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "pkill"}
"""Programs that prelude.sh lets succeed without output in every run."""


def _values(launch: Launch) -> dict[str, str]:
    return {(parts := each.partition("="))[0].lstrip("+"): parts[2] for each in launch.overrides}


def _some(texts: Sequence[str]) -> str:
    """Return the first of different texts."""
    different = list(dict.fromkeys(texts))
    return ", ".join(different[:5]) + (f" and {len(different) - 5} more" if len(different) > 5 else "")


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
