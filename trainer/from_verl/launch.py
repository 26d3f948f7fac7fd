"""Read the command that starts verl from a command line or a shell script.

A restricted bash (`bash -r`) expands the script, so variables, arrays, conditions and arguments have the values of a
real run. Nothing else happens: the shell cannot write files or start programs by their path, and PATH contains only
readers such as `dirname`. Every other command is recorded and succeeds without running. The output of a program that
does not run (`$(python -c ...)`) is empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentloop.errors import UserError

_SECONDS = 20
"""Time limit of a script, which may wait for a server that never starts; commands up to then count."""

_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "reward", "reward_model", "trainer")
"""Sections of verl's config; a command that sets a key of one of them starts verl."""


@dataclass(slots=True, frozen=True)
class Launch:
    """One command that starts verl."""

    module: str
    """Module or path of the file that Python runs."""
    overrides: tuple[str, ...]
    """Hydra overrides as written: key=value, +key=value, ~key."""
    config_path: str | None = None
    config_name: str | None = None
    """Hydra's options of these names; None: the configs of the module."""


def launches(commands: Sequence[Sequence[str]]) -> list[Launch]:
    """Return the launches among commands."""
    return [launch for command in commands if (launch := launch_of(command)) is not None]


def launch_of(command: Sequence[str]) -> Launch | None:
    """Read a command with any launcher (ray job submit, torchrun, uv run, srun); None if it does not start verl."""
    words = list(command)
    # In `srun bash -c "python ..."` a single word is a command itself.
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
    """Yield Hydra's --config-path and --config-name in all their spellings."""
    for place, word in enumerate(words):
        if found := re.fullmatch(r"(?:--config-|-c)(p|path|n|name)(?:=(.*))?", word, re.DOTALL):
            value = found[2] if found[2] is not None else "".join(words[place + 1 : place + 2])
            yield {"p": "path", "n": "name"}.get(found[1], found[1]), value


_READERS = (
    "basename", "cat", "cut", "date", "dirname", "expr", "grep", "head", "hostname", "nproc", "realpath", "seq",
    "sort", "tail", "tr", "uname", "wc", "whoami",
)  # fmt: skip
"""Programs that a script may run, because they only print."""

_BEFORE = r"""
command_not_found_handle() {
    printf '%s\0' "$@" >&"$LAUNCH_FD"; printf '\001\0' >&"$LAUNCH_FD"
    case "$1 ${2-}" in python*' -c'|python*' -'|curl*) return 1 ;; esac
}
set() { if [ "${1-}" = -- ]; then echo "from-verl: set -- is not followed" >&2; fi; }
exec() { if [ $# -gt 0 ]; then "$@"; fi; }
cd() {
    local to="${!#}"
    case "$to" in /*) PWD=$(realpath -m -- "$to") ;; *) PWD=$(realpath -m -- "$PWD/$to") ;; esac
}
pwd() { printf '%s\n' "$PWD"; }
source() { :; }
.() { :; }
kill() { :; }
"""
"""Prelude of a script: it records commands, and replaces builtins.

`set -e` would end the script at the first command that does not run. A restricted shell forbids `cd` but allows `kill`.
"""

_OUTPUT = re.compile(r"""(?<=\s)(?:\d|&)?>>?(?!&)\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s;|&()<>]+)""")


def script_commands(script: Path, arguments: Sequence[str] = ()) -> tuple[list[list[str]], str]:
    """Return the words of every command that a shell script would start, and the last complaint of its shell.

    The script is called with `arguments`. Raises `UserError` if it cannot be read, or if there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("Reading a script needs bash, which is not installed. Give the overrides instead, after --.")
    try:
        text = _safe(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {script} cannot be read: {error}. Check its path.") from error
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as written,
        tempfile.TemporaryFile() as errors,
    ):
        for name in _READERS:
            if (path := shutil.which(name)) is not None:
                Path(folder, name).symlink_to(path)
        process = subprocess.Popen(
            [bash, "-r", "-c", _BEFORE + text, str(script), *arguments],
            env=_environment() | {"PATH": folder, "LAUNCH_FD": str(written.fileno())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[written.fileno()],
            start_new_session=True,
        )
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            errors.write(f"\nthe script still ran after {_SECONDS} s".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its subshells
            process.wait()
        return _commands(_text(written)), _complaint(_text(errors))


def _environment() -> dict[str, str]:
    """Return the environment without variables that make bash run files before it is restricted."""
    return {name: value for name, value in os.environ.items() if name not in ("BASH_ENV", "ENV", "SHELLOPTS")}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _complaint(errors: str) -> str:
    """Return the last error message of the shell, without its line number."""
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("+")]
    return re.sub(r"^.*?: line \d+: ", "", lines[-1]).strip() if lines else ""


def _safe(text: str) -> str:
    """Remove redirections, which a restricted shell refuses, and replace BASH_SOURCE."""
    text = re.sub(r"\$\{BASH_SOURCE(\[0\])?(?::-[^}]*)?\}|\$BASH_SOURCE\b", "$0", text)
    lines = text.split("\n")
    # In conditions and arithmetic, > means greater.
    return "\n".join(line if re.search(r"\[\[|\(\(", line) else _OUTPUT.sub("", line) for line in lines)


def _commands(written: str) -> list[list[str]]:
    commands = [part.split("\0") for part in written.split("\001\0")]
    return [command[:-1] for command in commands[:-1]]
