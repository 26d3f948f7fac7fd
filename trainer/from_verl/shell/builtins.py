"""Commands that a shell has itself; all others are programs, and do not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agentloop.trainer.from_verl.shell.arithmetic import evaluate
from agentloop.trainer.from_verl.shell.conditions import status_of
from agentloop.trainer.from_verl.shell.state import Shell
from agentloop.trainer.from_verl.shell.unknown import Unreadable, plain
from agentloop.trainer.from_verl.shell.words import ansi


class Leave(Exception):
    """The end of a script (`exit`), function (`return`) or loop (`break`, `continue`)."""

    def __init__(self, kind: str, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind = kind
        self.levels = levels


def _echo(words: Sequence[str], shell: Shell) -> int:
    words = list(words)
    options = ""
    while words and re.fullmatch(r"-[neE]+", words[0]):
        options += words.pop(0)
    text = " ".join(words)
    shell.print((ansi(text) if "e" in options else text) + ("" if "n" in options else "\n"))
    return 0


_FORMAT = re.compile(r"%([-+ 0#]*\d{0,3}(?:\.\d{0,3})?)([a-zA-Z%])")


def _printf(words: Sequence[str], shell: Shell) -> int:
    words = list(words)
    name = ""
    if words[:1] == ["-v"] and len(words) > 1:
        name, words = words[1], words[2:]
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        return 2
    text = ansi(words.pop(0))
    parts: list[str] = []
    while True:
        before = len(words)
        parts.append(_FORMAT.sub(lambda each: _formatted(each[1], each[2], words), text))
        shell.record.spend(1 + len(parts[-1]))
        if not words or len(words) == before:
            break
    if name:
        shell.set(name, "".join(parts))
    else:
        shell.print("".join(parts))
    return 0


def _formatted(options: str, kind: str, words: list[str]) -> str:
    if kind == "%":
        return "%"
    word = words.pop(0) if words else ""
    try:
        if kind in "diuxXo":
            return f"%{options}{'d' if kind in 'iu' else kind}" % int(plain(word) or "0", 0)
        if kind in "feg":
            return f"%{options}{kind}" % float(plain(word) or "0")
        if kind in "sb":
            return f"%{options}s" % (ansi(word) if kind == "b" else word)
    except ValueError:
        return "0"
    raise Unreadable(f"printf %{kind} is not read")


def _cd(words: Sequence[str], shell: Shell) -> int:
    names = [word for word in words if word not in ("--", "-L", "-P")]
    shell.set("PWD", shell.path(plain(names[0])) if names else shell.scalar("HOME"))
    return 0


def _pwd(_words: Sequence[str], shell: Shell) -> int:
    shell.print(f"{shell.folder}\n")
    return 0


def _set(words: Sequence[str], shell: Shell) -> int:
    at = 0
    while at < len(words) and re.match(r"[-+]\w", words[at]):
        at += 2 if words[at][-1] == "o" else 1
    if at < len(words):
        shell.parameters = tuple(words[at + (words[at] == "--") :])
    return 0


def _shift(words: Sequence[str], shell: Shell) -> int:
    count = _number(words, 1)
    if count > len(shell.parameters):
        return 1
    shell.parameters = shell.parameters[count:]
    return 0


def _number(words: Sequence[str], otherwise: int) -> int:
    return int(words[0]) if words and re.fullmatch(r"\d{1,6}", words[0]) else otherwise


def _read(words: Sequence[str], shell: Shell) -> int:
    words, array = list(words), ""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option[-1] in "apdtnu" and words:
            value = words.pop(0)
            array = value if option[-1] == "a" else array
            if option[-1] == "d":
                raise Unreadable("read -d is not read")
    line, end, shell.stdin = shell.stdin.partition("\n")
    names = words or ["REPLY"]
    separators = str(shell.variables.get("IFS", " \t\n"))
    split = re.compile(f"[{re.escape(separators)}]+") if separators else re.compile("(?!)")
    if array:
        shell.set(array, dict(enumerate(each for each in split.split(line) if each)))
        return int(not end)
    parts = split.split(line.strip(separators), len(names) - 1) if len(names) > 1 else [line.strip(separators)]
    for name, part in zip(names, [*parts, *[""] * len(names)], strict=False):
        _check_name(name)
        shell.set(name, part)
    return int(not end)


def _mapfile(words: Sequence[str], shell: Shell) -> int:
    names = [word for word in words if not word.startswith("-")]
    lines = shell.stdin.splitlines(keepends="-t" not in words)
    shell.stdin = ""
    name = names[0] if names else "MAPFILE"
    _check_name(name)
    shell.set(name, dict(enumerate(lines)))
    return 0


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise Unreadable(f"{plain(name)[:40]!r} is not the name of a variable")


def _unset(words: Sequence[str], shell: Shell) -> int:
    for word in words:
        name, _, rest = word.partition("[")
        value = shell.variables.get(name)
        if word == "-f":
            break
        if rest and isinstance(value, dict):
            key = rest[:-1] if name in shell.associative else int(plain(evaluate(rest[:-1], shell)))
            shell.set(name, {each: value[each] for each in value if each != key})
        else:
            shell.unset(name)
    return 0


def _let(words: Sequence[str], shell: Shell) -> int:
    value = "0"
    for word in words:
        value = evaluate(word, shell)
    return int(plain(value) == "0")


def _test(words: Sequence[str], shell: Shell) -> int:
    return status_of(words, shell)


def _bracket(words: Sequence[str], shell: Shell) -> int:
    return status_of(words[:-1], shell) if words and words[-1] == "]" else 2


def _leave(kind: str) -> Builtin:
    def leave(words: Sequence[str], shell: Shell) -> int:
        if kind in ("exit", "return"):
            shell.status = _number(words, shell.status)
            raise Leave(kind)
        raise Leave(kind, max(_number(words, 1), 1))

    return leave


def _ignored(_words: Sequence[str], _shell: Shell) -> int:
    return 0


def _false(_words: Sequence[str], _shell: Shell) -> int:
    return 1


def _sourced(words: Sequence[str], shell: Shell) -> int:
    shell.record.note(f"The script reads {plain(' '.join(words))[:80]}, which is not followed: check what it sets.")
    return 0


def _getopts(_words: Sequence[str], _shell: Shell) -> int:
    raise Unreadable("getopts is not read")


Builtin = Callable[[Sequence[str], Shell], int]

BUILTINS: dict[str, Builtin] = {
    "echo": _echo, "printf": _printf, "cd": _cd, "pwd": _pwd, "set": _set, "shift": _shift, "read": _read,
    "mapfile": _mapfile, "readarray": _mapfile, "unset": _unset, "let": _let, "test": _test, "[": _bracket,
    "exit": _leave("exit"), "return": _leave("return"), "break": _leave("break"), "continue": _leave("continue"),
    "source": _sourced, ".": _sourced, "getopts": _getopts, "false": _false, "type": _false, "which": _false,
    **dict.fromkeys(
        (":", "true", "trap", "wait", "ulimit", "umask", "shopt", "alias", "unalias", "hash", "kill", "jobs", "disown",
         "enable", "bind", "complete", "times", "exec", "popd", "history", "fg", "bg", "suspend", "caller"), _ignored
    ),
}  # fmt: skip
