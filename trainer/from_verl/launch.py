"""How a run of verl is started: the words of its command, out of a command line or a shell script.

The shell itself expands a script, so that variables, arrays, conditions and arguments come out as in a run. It does
nothing else: in a restricted bash (`bash -r`) no file can be written and no program started by its path, the path
that programs are searched in has readers such as `dirname` alone, and every other command is written down and counts
as done. What a script would read from a program that was not run (`$(python -c ...)`) is empty.
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
"""A script that waits for a server that was never started ends then; what it had started counts."""

_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "reward", "reward_model", "trainer")
"""Of verl's config: who sets a key of one of them starts verl."""


@dataclass(slots=True, frozen=True)
class Launch:
    """One command that starts verl."""

    module: str
    """What Python runs: a module, or the path of a file."""
    overrides: tuple[str, ...]
    """Hydra's, as they were written: key=value, +key=value, ~key."""
    config_path: str | None = None
    config_name: str | None = None
    """Hydra's options of these names; the configs of the module where they were not said."""


def launches(commands: Sequence[Sequence[str]]) -> list[Launch]:
    """Those of the commands that start verl."""
    return [launch for command in commands if (launch := launch_of(command)) is not None]


def launch_of(command: Sequence[str]) -> Launch | None:
    """A command, whatever starts Python in it (ray job submit, torchrun, uv run, srun); None where it is not verl."""
    words = list(command)
    # `ray job submit ... -- python`, `srun bash -c "python ..."`: some are one word that is a command again.
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
    """Hydra's --config-path and --config-name, in all of their spellings."""
    for place, word in enumerate(words):
        if found := re.fullmatch(r"(?:--config-|-c)(p|path|n|name)(?:=(.*))?", word, re.DOTALL):
            value = found[2] if found[2] is not None else "".join(words[place + 1 : place + 2])
            yield {"p": "path", "n": "name"}.get(found[1], found[1]), value


_READERS = (
    "basename", "cat", "cut", "date", "dirname", "expr", "grep", "head", "hostname", "nproc", "realpath", "seq",
    "sort", "tail", "tr", "uname", "wc", "whoami",
)  # fmt: skip
"""Programs that a script may run: they only print."""

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
"""`set -e` would end a script at the first thing that was not done. `cd` is not allowed to a restricted shell, `kill`
is."""

_OUTPUT = re.compile(r"""(?<=\s)(?:\d|&)?>>?(?!&)\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s;|&()<>]+)""")


def script_commands(script: Path, arguments: Sequence[str] = ()) -> tuple[list[list[str]], str]:
    """The words of every command that a shell script would start, called with `arguments`, and what its shell
    complained about at last.

    Raises `UserError` where it cannot be read, and where there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("Reading a script needs bash, which is not here. Give the overrides themselves instead.")
    try:
        text = _safe(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {script} cannot be read: {error}.") from error
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as said:
        for name in _READERS:
            if (path := shutil.which(name)) is not None:
                Path(folder, name).symlink_to(path)
        process = subprocess.Popen(
            [bash, "-r", "-c", _BEFORE + text, str(script), *arguments],
            env=_environment() | {"PATH": folder, "LAUNCH_FD": str(written.fileno())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=[written.fileno()],
            start_new_session=True,
        )
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            said.write(f"\nit still ran after {_SECONDS} s".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # subshells, too
            process.wait()
        return _commands(_text(written)), _complaint(_text(said))


def _environment() -> dict[str, str]:
    """Without what bash would run before it is restricted."""
    return {name: value for name, value in os.environ.items() if name not in ("BASH_ENV", "ENV", "SHELLOPTS")}


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _complaint(said: str) -> str:
    """The last one, without where in the script it was."""
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("+")]
    return re.sub(r"^.*?: line \d+: ", "", lines[-1]).strip() if lines else ""


def _safe(text: str) -> str:
    """Without what a restricted shell refuses to do, so that it does the rest."""
    text = re.sub(r"\$\{BASH_SOURCE(\[0\])?(?::-[^}]*)?\}|\$BASH_SOURCE\b", "$0", text)
    lines = text.split("\n")
    # In conditions and arithmetic > means greater.
    return "\n".join(line if re.search(r"\[\[|\(\(", line) else _OUTPUT.sub("", line) for line in lines)


def _commands(written: str) -> list[list[str]]:
    commands = [part.split("\0") for part in written.split("\001\0")]
    return [command[:-1] for command in commands[:-1]]
