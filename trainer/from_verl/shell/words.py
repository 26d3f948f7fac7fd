"""Read the words of a script: quotes, parameters, substitutions and arithmetic."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from agentloop.trainer.from_verl.shell.syntax import AndOr, Output, Parameter, Sum, Text, Word
from agentloop.trainer.from_verl.shell.unknown import Unreadable, safe

META = " \t\n;&|<>()"
"""Characters that end an unquoted word."""

_MAX_DEPTH = 40
"""Substitutions, quotes and compound commands inside each other."""
_MAX_PARTS = 200_000
"""Words and statements of a script, those counted again that are read twice: `$((` may be one of two things."""

_ENDS = {
    "word": META, "double": '"', "heredoc": "", "brace": "}", "brace double": "}", "sum": ")", "index": "]",
    "clause": ";)",
}  # fmt: skip
"""Kinds of text, with the characters that end them."""
_QUOTED = ("double", "heredoc", "brace double", "sum", "clause")
"""Kinds whose expansions are not split, and where single quotes are literal."""
_PLAIN = re.compile(r"[\w.,:=@%+-]+")
_NAME = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_SIMPLE_NAME = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]", re.ASCII)
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|/[/#%]?|\^\^?|,,?|:|@")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)


class WordReader(ABC):
    """A position in a script, and the words from there."""

    def __init__(self, text: str, outer: WordReader | None = None) -> None:
        self.text = text
        self.at = 0
        self._depth: int = outer._depth if outer else 0
        self._entered: list[int] = outer._entered if outer else [0]

    @abstractmethod
    def statements(self, closer: str = "") -> tuple[AndOr, ...]:
        """Read statements until `closer`, which is left."""

    @abstractmethod
    def inner(self, text: str) -> WordReader:
        """Return a reader of text inside this one."""

    def next(self, count: int = 1) -> str:
        """Return the next characters without passing them."""
        return self.text[self.at : self.at + count]

    def expect(self, text: str) -> None:
        """Pass `text`."""
        if not self.text.startswith(text, self.at):
            raise self.unexpected(f"{text!r} is missing")
        self.at += len(text)

    def unexpected(self, what: str) -> Unreadable:
        """Return an error at this place."""
        return Unreadable(f"line {self.line(self.at)}: {what}")

    def line(self, at: int) -> int:
        """Return the number of the line of an offset."""
        return self.text.count("\n", 0, at) + 1

    def enter(self) -> None:
        """Count one level of nesting."""
        self._depth += 1
        self._entered[0] += 1
        if self._depth > _MAX_DEPTH:
            raise self.unexpected(f"more than {_MAX_DEPTH} levels of nesting are not read")
        if self._entered[0] > _MAX_PARTS:
            raise self.unexpected(f"a script with more than {_MAX_PARTS} words is not read")

    def leave(self) -> None:
        """End the level of `enter`."""
        self._depth -= 1

    def word(self, kind: str = "word") -> Word:
        """Read text of a kind until one of its ends, which is left."""
        self.enter()
        parts: list[Text | Parameter | Output | Sum] = []
        open_ = 0  # parentheses inside arithmetic
        ends = _ENDS[kind]
        while self.at < len(self.text):
            if run := _PLAIN.match(self.text, self.at):
                parts.append(Text(run[0], kind in _QUOTED))
                self.at = run.end()
                continue
            character = self.text[self.at]
            if character in ends and not (open_ and character in ")"):
                break
            if kind in ("sum", "clause"):
                open_ += (character == "(") - (character == ")")
            parts.extend(self._part(character, kind))
        self.leave()
        return tuple(_joined(parts))

    def _part(self, character: str, kind: str) -> list[Text | Parameter | Output | Sum]:
        if character == "\\":
            return [self._escaped(kind)]
        if character == "'" and kind not in _QUOTED:
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise self.unexpected("a quote ' is not closed")
            quoted = self.text[self.at + 1 : end]
            self.at = end + 1
            return [Text(quoted, True)]
        if character == '"' and kind != "heredoc":
            self.at += 1
            inside = self.word("double")
            self.expect('"')
            return list(inside) or [Text("", True)]
        if character == "$":
            return self._dollar(kind)
        if character == "`":
            return [self._backquoted(kind)]
        self.at += 1
        return [Text(character, kind in _QUOTED)]

    def _escaped(self, kind: str) -> Text:
        self.at += 2
        if self.at > len(self.text):
            self.at = len(self.text)
            return Text("")  # a script ends with a backslash
        character = self.text[self.at - 1]
        if character == "\n":
            return Text("")
        special = {"double": '$`"\\', "heredoc": "$`\\", "brace double": '$`"\\}', "sum": '$`"\\', "clause": '$`"\\'}
        if kind in special and character not in special[kind]:
            return Text(f"\\{character}", True)
        return Text(character, True)

    def _dollar(self, kind: str) -> list[Text | Parameter | Output | Sum]:
        quoted = kind in _QUOTED
        following = self.text[self.at + 1 : self.at + 3]
        if following[:1] == "'" and not quoted:
            return [self._ansi()]
        if following[:1] == '"' and kind != "heredoc" and not quoted:
            self.at += 1
            return []
        if following == "((" and (found := self._sum(quoted)):
            return [found]
        if following[:1] == "(":
            start = self.at
            self.at += 2
            body = self.statements(")")
            self.expect(")")
            return [Output(body, self.text[start : self.at], quoted)]
        if following[:1] == "{":
            self.at += 2
            return [self._braced(kind)]
        if name := _SIMPLE_NAME.match(self.text, self.at + 1):
            self.at = name.end()
            return [Parameter(name[0], quoted)]
        self.at += 1
        return [Text("$", quoted)]

    def _sum(self, quoted: bool) -> Sum | None:
        """Read `$((...))`; None if it is `$( (...) ...)`."""
        start = self.at
        self.at += 3
        expression = self.word("sum")
        if self.next(2) == "))":
            self.at += 2
            return Sum(expression, quoted)
        self.at = start
        return None

    def _ansi(self) -> Text:
        end = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if end is None:
            raise self.unexpected("a quote $' is not closed")
        self.at = end.end()
        return Text(safe(ansi(end[1])), True)

    def _backquoted(self, kind: str) -> Output:
        end = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.text, self.at)
        if end is None:
            raise self.unexpected("a backquote is not closed")
        self.enter()
        reader = self.inner(re.sub(r"\\([$`\\])", r"\1", end[1]))
        body = reader.statements()
        self.leave()
        self.at = end.end()
        return Output(body, end[0], kind in _QUOTED)

    def _braced(self, kind: str) -> Parameter:
        """Read a parameter after `${`."""
        quoted = kind in _QUOTED
        length = self.next() == "#" and self.next(2) not in ("#}", "#:", "##", "#%", "#-", "#?", "#+", "#=")
        indirect = self.next() == "!" and self.next(2) != "!}"
        self.at += length or indirect
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise self.unexpected(f"${{{self.next(12)} is not a parameter")
        self.at = name.end()
        index = None
        if self.next() == "[":
            self.at += 1
            index = self.word("index")
            self.expect("]")
        operator = _OPERATOR.match(self.text, self.at)
        argument: Word = ()
        if operator is not None and not length:
            self.at = operator.end()
            plain_text = operator[0] in ("-", "=", "?", "+", ":-", ":=", ":?", ":+", ":")
            argument = self.word("brace double" if quoted and plain_text else "brace")
        self.expect("}")
        return Parameter(name[0], quoted, index, length, indirect, operator[0] if operator else "", argument)


def _joined(parts: list[Text | Parameter | Output | Sum]) -> list[Text | Parameter | Output | Sum]:
    """Join neighbouring characters."""
    joined: list[Text | Parameter | Output | Sum] = []
    run: list[str] = []
    kind = False
    for part in [*parts, None]:
        if run and (not isinstance(part, Text) or part.quoted != kind):
            joined.append(Text("".join(run), kind))
            run = []
        if isinstance(part, Text):
            kind = part.quoted
            run.append(part.text)
        elif part is not None:
            joined.append(part)
    return joined


def ansi(text: str) -> str:
    """Replace the escapes of `$'...'`, which `echo -e` and `printf` have too."""

    def character(match: re.Match[str]) -> str:
        hexadecimal = match[1] or match[2] or match[3]
        if hexadecimal:
            return chr(min(int(hexadecimal, 16), 0x10FFFF))
        if match[4]:
            return chr(int(match[4], 8) & 0xFF)
        return _ESCAPES.get(match[5], match[5] if match[5] in "\\'\"?" else match[0])

    return _ANSI.sub(character, text)
