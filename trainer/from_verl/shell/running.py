"""Run a script in a sandbox in which programs are recorded instead of started, and appear to succeed.

The sandbox has no network, no file except the script, and only the given variables. The script runs with empty outputs,
which gives the commands, and with marks in place of unknown values: settings and conditions that then contain a mark
depend on an unknown value. It also runs with marks in place of outputs only, and with programs that fail: settings that
then differ depend on a program, too.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from agentloop import sandboxes
from agentloop.errors import UserError
from agentloop.sandboxes.interface.sandbox import Execution, ExecutionResult

_SECONDS = 3
"""Time limit of one run of a script."""
_PASSES = 4
_FILE = "unknown_file"
"""Mark for the content of a missing file."""
_SOURCED = "sourced"
"""Kind of record for a file that the script sources."""
_READ = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
"""A variable that is read without a default."""
_CHANGED = re.compile(r"\$\{(?=([A-Za-z_]\w*)(?:[#%/^,@]|:[^-=?+]))")
"""Begin of a variable that is changed as it is read: ${NAME##*/}."""
_SUM = re.compile(r"\$\(\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)")
"""$((...)), with at most two brackets around each other in it."""
_IN_SUM = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]*\}|`[^`]*`|[$\w][\w#]*")
"""Parts of a sum that may be names of variables; programs, numbers and variables with $ are others."""
_PROGRAM = re.compile(r"/[\w.+/-]*bin/[\w.+-]+")
_WORD = r"(?:\"[^\"]*\"|'[^']*'|\$\([^()]*\)|[^\s;|&<>\"'()])+"
_OUTPUT, _INPUT = re.compile(rf"((?<!\S)[\d&]?>>?)\|?\s*(?!&){_WORD}"), re.compile(rf"(?<!<)<\s*(?![<&(]){_WORD}")
_ERROR = re.compile(r"^.*?: line (\d+): (.*)$", re.MULTILINE)
_NO_FILE = re.compile(r"(.*): (?:No such file or directory|Permission denied|Read-only file system|Is a directory)")
_CONDITION = re.compile(r"(?:\[\[|'\['|test|case|\(\() .*")
_FILE_TEST = re.compile(r"-[defrswx] ('[^']+'|[^\s']+)")
_MODES = {"plain": "", "marked": "__marked=1", "printing": "__marked=1", "failing": "__failing=1"}
"""Run of the script -> variables of the prelude. In the run `marked`, unset variables have marks, too."""
_MAIN = """\
now=$(date +%s)
run() {{
    mkdir -p $1 run
    # The pipe closes when every process of the script has ended, because all of them hold descriptor 9.
    (cd run && timeout {seconds} env -i __records=$OLDPWD/$1 __now=$now __marked= __failing= $2 {variables} \\
        bash -c '. ../start.sh' {words} 8> ../$1.trace 9>&1 > /dev/null 2> ../$1.errors < /dev/null
    echo $? > ../$1.status) | cat
    find $1 -type f | sort | xargs -r cat > $1.commands
    [ $(< $1.status) != 124 ] || exit
}}
"""
_FETCHED = tuple(f"{mode}.{kind}" for mode in _MODES for kind in ("commands", "trace", "errors", "status"))


@dataclass(slots=True)
class Record:
    """Record of the run of a script."""

    commands: list[list[str]]
    """Words of every command that a real shell would start."""
    marked: list[list[str]]
    """The same commands with marks in place of unknown values."""
    variants: list[list[list[str]]]
    """The same commands with marks in place of the output of programs, and with programs that fail."""
    marks: dict[str, str]
    """Mark -> description of the unknown value."""
    notes: list[str]
    """Notes that a person should check."""
    complaint: str
    """Why the script could not be followed to its end; empty if it could."""

    def unknowns(self, value: str) -> list[str]:
        """Return descriptions of the unknown values whose marks are in `value`."""
        return list(dict.fromkeys(self.marks[mark] for mark in self._pattern().findall(value)))

    def plain(self, value: str) -> str:
        """Return a value without its marks."""
        return self._pattern().sub("", value)

    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(sorted(self.marks, key=len, reverse=True)))


def follow(text: str, script: str, arguments: Sequence[str], variables: Mapping[str, str]) -> Record:
    """Run a script with its arguments, and with `variables` as its environment.

    Raises `UserError` if no isolation level works on this machine.
    """
    return asyncio.run(_follow(text, [script, *arguments], variables))


async def _follow(text: str, words: Sequence[str], variables: Mapping[str, str]) -> Record:
    sandbox = sandboxes.create(slots=1)
    try:
        try:
            await sandbox.start()
        except UserError as error:
            raise UserError(
                "Launch scripts run in a sandbox, but no isolation level works on this machine. Start Docker or "
                "allow user namespaces (docs/guides/sandboxes.md), or pass the command itself: agentloop from-verl -- "
                "COMMAND."
            ) from error
        programs = set(_PROGRAM.findall(text))
        for _ in range(_PASSES):
            result = await sandbox.run(_execution(text, words, variables, sorted(programs)))
            errors = _ERROR.findall(_text(result, "plain.errors"))
            missing = [(int(line), found[1]) for line, message in errors if (found := _NO_FILE.fullmatch(message))]
            changed = _without_files(text, {line for line, _ in missing})
            called = programs | {path for _, path in missing if re.fullmatch(r"[\w.+-]*/[\w./+-]+", path)}
            if (changed, called) == (text, programs):
                break
            text, programs = changed, called
    finally:
        await sandbox.close()
    return _record(result, text)


def _execution(text: str, words: Sequence[str], variables: Mapping[str, str], programs: Sequence[str]) -> Execution:
    prelude = resources.files(__package__).joinpath("prelude.sh").read_text(encoding="utf-8")
    named = [f"{name}={value}" for name, value in variables.items() if name.isidentifier()]
    functions = [f'function {path} {{ {path.rpartition("/")[2]} "$@"; }}' for path in programs]
    # Bash sets PWD when it starts.
    folder = f"PWD={shlex.quote(variables.get('PWD', '/'))}"
    start = "\n".join([prelude, *functions, folder, "builtin . $__records.sh\n"])
    main = _MAIN.format(seconds=_SECONDS, variables=shlex.join(named), words=shlex.join(words))
    for mode, setting in _MODES.items():
        main += f"echo {_FILE if '__marked' in setting else ''} > file\nrun {mode} {setting}\n"
    plain = text.replace("BASH_SOURCE", "SCRIPT_SOURCE")  # bash overwrites BASH_SOURCE with the path in the sandbox
    marked = _SUM.sub(lambda found: f"$(({_IN_SUM.sub(_marked_if_unset, found[1])}))", plain)
    marked = _READ.sub(lambda found: f"${{{(name := found[1] or found[2])}-unknown_{name}}}", marked)
    marked = _CHANGED.sub(lambda found: f"{_mark_if_unset(found[1])}{found[0]}", marked)
    texts = {"start.sh": start, "plain.sh": plain, "failing.sh": plain}
    texts |= {"marked.sh": _with_marked_sums(marked), "printing.sh": _with_marked_sums(plain)}
    files = {name: each.encode(errors="replace") for name, each in texts.items()}
    return Execution(
        code=main.encode(errors="replace").decode(),
        language="bash",
        timeout=(len(_MODES) + 1) * _SECONDS,
        memory_mb=512,
        files=files,
        fetch_files=_FETCHED,
        fetch_bytes=8 << 20,
    )


def _mark_if_unset(name: str) -> str:
    """Return an expression that is a mark if the variable is unset, else empty: __mark has only the element 0."""
    return f"${{__mark[0${{{name}+1}}]:+unknown_{name}}}"


def _marked_if_unset(found: re.Match[str]) -> str:
    return f"{_mark_if_unset(found[0])}{found[0]}" if found[0].isidentifier() else found[0]


def _with_marked_sums(text: str) -> str:
    """Let $((...)) print a mark if it computes with an unknown value, which bash takes for 0."""

    def marked(found: re.Match[str]) -> str:
        changes_a_variable = re.search(r"\+\+|--|[^=!<>]=[^=]", found[1])
        return found[0] if changes_a_variable else f'$(__compute "{found[1]}")'

    return _SUM.sub(marked, text)


def _names(text: str) -> list[str]:
    read = {first or second for first, second in _READ.findall(text)} | set(_CHANGED.findall(text))
    in_sums = {part for inside in _SUM.findall(text) for part in _IN_SUM.findall(inside)}
    return sorted(read | set(filter(str.isidentifier, in_sums)))


def _without_files(text: str, lines: set[int]) -> str:
    """Replace the files of redirections on these lines."""
    changed = text.split("\n")
    for line in lines:
        for place in range(line - 1, len(changed)):
            output = _OUTPUT.sub(r"\1 /dev/null", changed[place])
            changed[place] = _INPUT.sub("< ../file", output)
            if not changed[place].rstrip().endswith("\\"):
                break
    return "\n".join(changed)


def _text(result: ExecutionResult, name: str) -> str:
    return result.files.get(name, b"").decode(errors="replace")


def _record(result: ExecutionResult, text: str) -> Record:
    records = [list(_commands(_text(result, f"{mode}.commands"))) for mode in _MODES]
    marks = {mark: f"the output of {_plain(words)}, which does not run" for each in records for mark, words in each}
    marks |= {f"unknown_{name}": f"${name}, which is not set" for name in _names(text)}
    # __compute prints these for variables that are unset.
    marks |= {f"unknown_0_{name}": f"the variable {name}, which is not set" for name in _names(text)}
    marks |= dict.fromkeys((_FILE, _FILE.replace("_", "_0_")), "a file, which is not read")
    notes = [
        f"The script sources {short(words)}, which is not read: check what it sets."
        for kind, words in records[0]
        if kind == _SOURCED
    ]
    plain, marked, *variants = ([words for kind, words in each if kind != _SOURCED] for each in records)
    record = Record(plain, marked, variants, marks, notes, _complaint(result))
    for condition, _ in _conditions(_text(result, "marked.trace")):
        for unknown in record.unknowns(condition):
            if not unknown.startswith("$"):
                notes.append(f"A condition or loop of the script depends on {unknown}, which counts as empty.")
    for condition, folder in _conditions(_text(result, "plain.trace")):
        for name in _FILE_TEST.findall(condition):
            if os.path.exists(path := os.path.join(folder, name.strip("'"))):
                notes.append(f"A condition of the script tests {path}, which does not exist in the sandbox: check it.")
    notes[:] = dict.fromkeys(notes)
    return record


def _plain(words: Sequence[str]) -> str:
    """Return a command with its marks as they are in the script."""
    return re.sub(r"unknown_\d+_\d+", "...", re.sub(r"unknown_(?:0_)?([A-Za-z_])", r"$\1", short(words)))


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Read records: a mark, the number of words, and the words, with a NUL after each."""
    words = iter(text.split("\0"))
    for mark in words:
        count = next(words, "")
        if count.isdecimal() and (found := [word for _, word in zip(range(int(count)), words, strict=False)]):
            yield mark, found


def _conditions(trace: str) -> Iterator[tuple[str, str]]:
    """Yield the expanded conditions of the script in a trace, with their working folders."""
    for line in trace.split("\x1e"):
        source, _, rest = line.partition("\x1f")
        folder, _, command = rest.partition("\x1f")
        if source in ("plain.sh", "marked.sh") and _CONDITION.match(command):
            yield command, folder


def short(words: Sequence[str]) -> str:
    """Return a command in at most 80 characters."""
    text = " ".join(" ".join(words).split())
    return text if len(text) < 80 else f"{text[:77]}..."


def _complaint(result: ExecutionResult) -> str:
    status = _text(result, "plain.status").strip()
    errors = [each for each in _ERROR.findall(_text(result, "plain.errors")) if not each[1].startswith("`")]
    if status in ("124", "125"):
        return f"it was still running after {_SECONDS} seconds or 100 sleeps"
    if not status or int(status) > 128 or result.files_truncated:  # 128 + N: killed, for example out of memory
        return "it exceeded the limits of its sandbox"
    return f"line {errors[-1][0]}: {errors[-1][1]}" if status != "0" and errors else ""
