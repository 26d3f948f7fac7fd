"""Small programs that only compute text, in Python; each returns None for options that it does not know."""

from __future__ import annotations

import os
import platform
import posixpath
import re
import string
import time
from collections.abc import Callable, Sequence

from agentloop.trainer.from_verl.shell.state import MAX_TEXT, Shell
from agentloop.trainer.from_verl.shell.unknown import Unreadable

Program = Callable[[Sequence[str], Shell], "str | None"]


def _basename(words: Sequence[str], _shell: Shell) -> str | None:
    names = [word for word in words if word != "--"]
    if names[:1] == ["-s"] and len(names) == 3:
        names = [names[2], names[1]]
    if len(names) not in (1, 2) or names[0].startswith("-"):
        return None
    name = posixpath.basename(names[0].rstrip("/")) or names[0][:1]
    return (name.removesuffix(names[1]) or name if len(names) == 2 else name) + "\n"


def _dirname(words: Sequence[str], _shell: Shell) -> str | None:
    names = [word for word in words if word != "--"]
    if len(names) != 1 or names[0].startswith("-"):
        return None
    return (posixpath.dirname(names[0].rstrip("/")) or ("/" if names[0].startswith("/") else ".")) + "\n"


def _realpath(words: Sequence[str], shell: Shell) -> str | None:
    names = [word for word in words if word not in ("--", "-f", "-m", "-e", "-s")]
    return None if len(names) != 1 or names[0].startswith("-") else f"{shell.path(names[0])}\n"


def _date(words: Sequence[str], _shell: Shell) -> str | None:
    words = [word for word in words if word != "-u"]
    if len(words) > 1 or not all(word.startswith("+") and len(word) < 200 for word in words):
        return None
    text = words[0][1:] if words else "%a %b %e %H:%M:%S %Y"
    return re.sub(r"%-?[a-zA-Z%]", lambda each: "" if each[0] == "%N" else time.strftime(each[0]), text) + "\n"


def _seq(words: Sequence[str], _shell: Shell) -> str | None:
    if not words or len(words) > 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, last = (numbers[0] if len(numbers) > 1 else 1), numbers[-1]
    step = numbers[1] if len(numbers) == 3 else 1
    found = range(first, last + (1 if step > 0 else -1), step) if step else range(0)
    if len(found) * 10 > MAX_TEXT:
        raise Unreadable(f"seq {' '.join(words)} is too long")
    return "".join(f"{number}\n" for number in found)


def _tr(words: Sequence[str], shell: Shell) -> str | None:
    deletes, sets = words[:1] == ["-d"], [_characters(word) for word in words if not re.match(r"-\w", word)]
    if len(sets) + deletes != 2 or len(words) != 2 or not all(sets):
        return None
    if deletes:
        return "".join(each for each in shell.stdin if each not in sets[0])
    target = sets[1] + sets[1][-1] * len(sets[0])
    return shell.stdin.translate({ord(each): target[place] for place, each in reversed(list(enumerate(sets[0])))})


def _characters(text: str) -> str:
    """Expand the ranges, classes and escapes of a set of `tr`."""
    classes = {
        "upper": string.ascii_uppercase, "lower": string.ascii_lowercase, "digit": string.digits,
        "alpha": string.ascii_letters, "space": " \t\n\r\v\f", "punct": string.punctuation,
    }  # fmt: skip
    text = re.sub(r"\[:(\w+):\]", lambda each: classes.get(each[1], ""), text)
    text = re.sub(r"\\(.)", lambda each: {"n": "\n", "t": "\t"}.get(each[1], each[1]), text)
    return re.sub(
        r"([a-zA-Z0-9])-([a-zA-Z0-9])", lambda each: "".join(map(chr, range(ord(each[1]), ord(each[2]) + 1))), text
    )


def _options(words: Sequence[str], *names: str) -> tuple[dict[str, str], list[str]] | None:
    """Return short options with values, and the other words; None for other options."""
    found: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word[:2] in names:
            at += not word[2:]
            if at >= len(words):
                return None
            found[word[:2]] = word[2:] or words[at]
        elif word.startswith("-") and word != "-":
            return None
        else:
            rest.append(word)
        at += 1
    return found, rest


def _cut(words: Sequence[str], shell: Shell) -> str | None:
    read = _options(words, "-d", "-f")
    if read is None or read[1] or not re.fullmatch(r"\d{1,4}(-\d{0,4})?", read[0].get("-f", "")):
        return None
    first, dash, last = read[0]["-f"].partition("-")
    separator = read[0].get("-d", "\t") or "\t"
    end = int(last) if last else None if dash else int(first)
    lines = (line.split(separator) for line in shell.stdin.splitlines())
    return "".join(separator.join(line[max(int(first) - 1, 0) : end] if line[1:] else line) + "\n" for line in lines)


def _head(words: Sequence[str], shell: Shell) -> str | None:
    count = _count(words)
    return None if count is None else "".join(shell.stdin.splitlines(keepends=True)[:count])


def _tail(words: Sequence[str], shell: Shell) -> str | None:
    count = _count(words)
    lines = shell.stdin.splitlines(keepends=True)
    return None if count is None else "".join(lines[max(len(lines) - count, 0) :])


def _count(words: Sequence[str]) -> int | None:
    found = re.fullmatch(r"(?:-n ?|-)(\d{1,6})", " ".join(words))
    return int(found[1]) if found else 10 if not words else None


def _wc(words: Sequence[str], shell: Shell) -> str | None:
    counts = {"-l": shell.stdin.count("\n"), "-w": len(shell.stdin.split()), "-c": len(shell.stdin.encode())}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _cat(words: Sequence[str], shell: Shell) -> str | None:
    return shell.stdin if not words or list(words) == ["-"] else None


def _sort(words: Sequence[str], shell: Shell) -> str | None:
    if any(word not in ("-u", "-r") for word in words):
        return None
    lines = shell.stdin.splitlines()
    return "".join(f"{line}\n" for line in sorted(set(lines) if "-u" in words else lines, reverse="-r" in words))


def _uname(words: Sequence[str], _shell: Shell) -> str | None:
    found = {(): platform.system(), ("-s",): platform.system(), ("-m",): platform.machine()}.get(tuple(words))
    return None if found is None else f"{found}\n"


def _nproc(words: Sequence[str], _shell: Shell) -> str | None:
    return None if words else f"{os.cpu_count() or 1}\n"


def _hostname(words: Sequence[str], _shell: Shell) -> str | None:
    return None if any(word != "-s" for word in words) else f"{platform.node().partition('.')[0]}\n"


def _whoami(words: Sequence[str], shell: Shell) -> str | None:
    return None if words else f"{shell.scalar('USER')}\n"


PROGRAMS: dict[str, Program] = {
    "basename": _basename, "cat": _cat, "cut": _cut, "date": _date, "dirname": _dirname, "head": _head,
    "hostname": _hostname, "nproc": _nproc, "readlink": _realpath, "realpath": _realpath, "seq": _seq, "sort": _sort,
    "tail": _tail, "tr": _tr, "uname": _uname, "wc": _wc, "whoami": _whoami,
}  # fmt: skip
