"""Expand words: braces, tildes, parameters, substitutions, arithmetic, splitting. Names of files stay patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentloop.trainer.from_verl.shell.arithmetic import evaluate
from agentloop.trainer.from_verl.shell.parameters import cased, replaced, sliced, trimmed
from agentloop.trainer.from_verl.shell.patterns import Pattern, pattern_of
from agentloop.trainer.from_verl.shell.state import MAX_TEXT, Array, Shell
from agentloop.trainer.from_verl.shell.syntax import Output, Parameter, Sum, Text, Word
from agentloop.trainer.from_verl.shell.unknown import Unreadable, marks, plain


@dataclass(slots=True, frozen=True)
class Piece:
    """A stretch of an expanded word."""

    text: str
    quoted: bool
    """Whether it is neither split nor a pattern."""
    split: bool = False
    """Whether it comes from an expansion, and is split at blanks."""
    ends: bool = False
    """Whether an argument ends after it: between the elements of "$@"."""


def text_of(word: Word, shell: Shell) -> str:
    """Expand a word without splitting, as after `=`."""
    return "".join(piece.text for piece in pieces_of(word, shell, joined=True))


def pattern_from(word: Word, shell: Shell) -> Pattern:
    """Expand a word as a pattern, in which quoted characters stand for themselves."""
    return pattern_of([(plain(piece.text), piece.quoted) for piece in pieces_of(word, shell, joined=True)])


def fields_of(words: Sequence[Word], shell: Shell) -> list[str]:
    """Expand words to arguments."""
    found: list[str] = []
    for word in words:
        for each in braces(word, shell):
            found.extend(_split(pieces_of(each, shell), shell))
    shell.record.spend(len(found) + sum(map(len, found)) // 8)
    return found


def pieces_of(word: Word, shell: Shell, *, joined: bool = False) -> list[Piece]:
    """Expand the parts of a word; `joined`: where arguments cannot be split, "$@" is one text."""
    pieces: list[Piece] = []
    for place, part in enumerate(word):
        if isinstance(part, Text):
            text = part.text
            if place == 0 and not part.quoted and re.match(r"~(/|$)", text) and (len(word) == 1 or text != "~"):
                text = shell.scalar("HOME") + text[1:]
            pieces.append(Piece(text, part.quoted))
        elif isinstance(part, Output):
            printed = shell.output_of(shell, part).rstrip("\n")
            pieces.append(Piece(printed, part.quoted, split=not part.quoted))
        elif isinstance(part, Sum):
            pieces.append(Piece(evaluate(text_of(part.expression, shell), shell), part.quoted, split=not part.quoted))
        else:
            pieces.extend(_parameter(part, shell, joined))
        shell.record.spend(1 + len(pieces[-1].text) // 8 if pieces else 1)
    return pieces


def _parameter(part: Parameter, shell: Shell, joined: bool) -> list[Piece]:
    starred = part.name == "*" or (part.index is not None and _literal(part.index) == "*")
    many = starred or part.name == "@" or (part.index is not None and _literal(part.index) == "@")
    found = _values(part, shell, many)
    operator, empty = part.operator, not any(plain(each) for each in found)
    unset = not found if many else _is_unset(part, shell)
    if operator in ("-", ":-", "=", ":=", "+", ":+", "?", ":?"):
        missing = unset or (empty and operator[0] == ":")
        if operator[-1] == "?" and missing:
            raise Unreadable(f"{part.name}: {plain(text_of(part.argument, shell)) or 'parameter null or not set'}")
        if operator[-1] == "+" and missing:
            return []
        if operator[-1] == "=" and missing:
            shell.set(part.name, text_of(part.argument, shell))
            found = _values(part, shell, many)
        elif operator[-1] == "+" or (operator[-1] == "-" and missing):
            pieces = pieces_of(part.argument, shell, joined=joined)
            return [Piece(e.text, e.quoted or part.quoted, not (e.quoted or part.quoted), e.ends) for e in pieces]
    elif operator and not part.length:
        found = _changed(part, found, shell, many)
    if joined or (part.quoted and starred):
        return [Piece(" ".join(found), part.quoted, split=not part.quoted)] if found or not many else []
    last = len(found) - 1
    return [Piece(each, part.quoted, not part.quoted, place < last) for place, each in enumerate(found)]


def _values(part: Parameter, shell: Shell, many: bool) -> list[str]:
    """Return the values before operators: one, or those of an array."""
    if part.indirect and not many:
        name = plain(_scalar(Parameter(part.name, index=part.index), shell))
        if not re.fullmatch(r"[A-Za-z_]\w*|\d+", name, re.ASCII):
            raise Unreadable(f"${{!{part.name}}} names no variable")
        return [_scalar(Parameter(name), shell)]
    if not many:
        value = _scalar(part, shell)
        return [f"{len(plain(value))}{marks(value)}"] if part.length else [value]
    if part.name in ("@", "*"):
        found = list(shell.parameters)
    else:
        value_of = shell.get(part.name)
        array: Array = {0: value_of} if isinstance(value_of, str) else value_of or {}
        keys = list(array) if part.name in shell.associative else sorted(array, key=lambda key: int(key))
        found = [str(key) for key in keys] if part.indirect else [array[key] for key in keys]
    shell.record.spend(len(found))
    return [str(len(found))] if part.length else found


def _is_unset(part: Parameter, shell: Shell) -> bool:
    if part.name.isdigit() and part.name != "0":
        return int(part.name) > len(shell.parameters)
    value = shell.variables.get(part.name)
    if isinstance(value, dict):
        return subscript(part.name, part.index or (Text("0"),), shell) not in value
    return value is None and re.match(r"[A-Za-z_]", part.name) is not None


def _scalar(part: Parameter, shell: Shell) -> str:
    name = part.name
    special = {
        "#": str(len(shell.parameters)), "?": str(shell.status), "$": "1", "!": "", "-": "", "0": shell.record.script,
        "BASH_SOURCE": shell.record.script,
    }  # fmt: skip
    if name in special:
        return special[name]
    if name.isdigit() and int(name) <= len(shell.parameters):
        return shell.parameters[int(name) - 1]
    value = None if name.isdigit() else shell.get(name)
    if isinstance(value, dict) or (value is not None and part.index is not None):
        array: Array = value if isinstance(value, dict) else {0: value}
        value = array.get(subscript(name, part.index or (Text("0"),), shell))
    return shell.record.unknowns.mark(f"${name}, which is not set") if value is None else value


def subscript(name: str, index: Word, shell: Shell) -> int | str:
    """Return the key of an element of an array."""
    text = text_of(index, shell)
    if name in shell.associative:
        return plain(text)
    number = int(plain(evaluate(text, shell)))
    value = shell.variables.get(name)
    if number < 0 and isinstance(value, dict) and value:
        number += max(int(key) for key in value) + 1
    return number


def _changed(part: Parameter, found: list[str], shell: Shell, many: bool) -> list[str]:
    """Apply the operators that change a value."""
    operator = part.operator
    shell.record.spend(sum(map(len, found)))
    if operator == ":":
        offset, _, count = text_of(part.argument, shell).partition(":")
        numbers = [int(plain(evaluate(each, shell))) if each.strip() else None for each in (offset, count)]
        if many and part.name in ("@", "*"):
            found = [shell.record.script, *found]
        whole: list[str] | str = found if many else found[0]
        part_of = whole[sliced(len(whole), numbers[0] or 0, numbers[1])]
        return part_of if isinstance(part_of, list) else [part_of]
    if operator[0] in "^,":
        return [cased(each, operator) for each in found]
    if operator == "@":
        raise Unreadable(f"${{{part.name}@...}} is not read")
    if operator[0] in "#%":
        pattern = pattern_from(part.argument, shell)
        _spend_on(pattern, found, shell)
        return [trimmed(each, operator, pattern) for each in found]
    old, new = _halves(part.argument)
    pattern, replacement = pattern_from(old, shell), text_of(new, shell)
    _spend_on(pattern, found, shell)
    shell.record.spend(sum(map(len, found)) * (1 + len(replacement)) // 8)
    return [replaced(each, operator, pattern, replacement) for each in found]


def _spend_on(pattern: Pattern, found: list[str], shell: Shell) -> None:
    """Count the work of matching from every place of a value."""
    shell.record.spend(sum(len(each) ** 2 for each in found) * (1 + len(pattern.parts)) // 16)


def _halves(word: Word) -> tuple[Word, Word]:
    """Split `pattern/replacement` at the first unquoted slash."""
    for place, part in enumerate(word):
        if isinstance(part, Text) and not part.quoted and "/" in part.text:
            before, _, after = part.text.partition("/")
            return (*word[:place], Text(before)), (Text(after), *word[place + 1 :])
    return word, ()


def _literal(word: Word) -> str:
    return word[0].text if len(word) == 1 and isinstance(word[0], Text) else ""


class _Fields:
    """Arguments while they are put together."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._text = ""
        self._real = False  # marks alone are no argument

    def add(self, text: str, real: bool) -> None:
        self._text += text
        self._real = self._real or real

    def end(self) -> None:
        if self._real:
            self.done.append(self._text)
        self._text, self._real = "", False


def _split(pieces: Sequence[Piece], shell: Shell) -> list[str]:
    separators = str(shell.variables.get("IFS", " \t\n"))
    fields = _Fields()
    for piece in pieces:
        if piece.split:
            for place, part in enumerate(re.split(_between(separators), piece.text) if separators else [piece.text]):
                if place:
                    fields.end()
                fields.add(part, bool(plain(part)))
        else:
            fields.add(piece.text, piece.quoted or bool(piece.text))
        if piece.ends:
            fields.end()
    fields.end()
    return fields.done


def _between(separators: str) -> str:
    """Return the regular expression of what splits a value: blanks together, other characters one by one."""
    blank = "".join(each for each in separators if each in " \t\n")
    other = re.escape("".join(each for each in separators if each not in " \t\n"))
    blanks = f"[{blank}]" if blank else "(?!)"
    return f"{blanks}*+[{other}]{blanks}*|{blanks}+" if other else f"{blanks}+"


def braces(word: Word, shell: Shell) -> list[Word]:
    """Expand `{a,b}` and `{1..3}` outside quotes."""
    if not any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in word):
        return [word]
    flat: list[Text | Parameter | Output | Sum] = []
    for part in word:
        if isinstance(part, Text) and not part.quoted:
            flat.extend(Text(character) for character in part.text)
        else:
            flat.append(part)
    return [tuple(each) for each in _alternatives(flat, shell, 0)]


_Flat = list[Text | Parameter | Output | Sum]


def _alternatives(flat: _Flat, shell: Shell, depth: int) -> list[_Flat]:
    shell.record.spend(1 + len(flat))
    if depth > 10:
        raise Unreadable("braces are nested too deeply")
    for start, part in enumerate(flat):
        if part != Text("{"):
            continue
        shell.record.spend(len(flat))
        end, commas = _closing(flat, start)
        if not end:
            continue
        inside = flat[start + 1 : end]
        if commas:
            edges = [start, *commas, end]
            choices = [
                choice
                for left, right in pairwise(edges)
                for choice in _alternatives(flat[left + 1 : right], shell, depth + 1)
            ]
        elif (numbers := _range(inside)) is not None:
            choices = [[Text(each)] for each in numbers]
        else:
            continue
        rest = _alternatives(flat[end + 1 :], shell, depth + 1)
        shell.record.spend(len(choices) * len(rest) * (1 + len(flat)))
        return [flat[:start] + choice + after for choice in choices for after in rest]
    return [flat]


def _closing(flat: _Flat, start: int) -> tuple[int, list[int]]:
    """Return the place of the brace that closes the one at `start`, or 0, and the places of its commas."""
    depth = 0
    commas: list[int] = []
    for place in range(start, len(flat)):
        if flat[place] == Text("{"):
            depth += 1
        elif flat[place] == Text("}"):
            depth -= 1
            if depth == 0:
                return place, commas
        elif flat[place] == Text(",") and depth == 1:
            commas.append(place)
    return 0, []


def _range(inside: _Flat) -> list[str] | None:
    text = "".join(part.text if isinstance(part, Text) and not part.quoted else "?" for part in inside)
    found = re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", text)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step > MAX_TEXT:
        raise Unreadable(f"the range {{{text}}} is too long")
    width = max(len(found[1]), len(found[2])) if re.search(r"(^|\.)-?0\d", text) else 0
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [f"{number:0{width}d}" if width else str(number) for number in numbers]
