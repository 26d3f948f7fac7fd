"""Arithmetic of the shell: 64-bit integers and the operators of C, with assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

from agentloop.trainer.from_verl.shell.state import Array, Shell
from agentloop.trainer.from_verl.shell.unknown import Unreadable, marks, plain

_TOKEN = re.compile(
    r"\s*(\d+#\w+|0[xX][0-9a-fA-F]+|\d+(?![\w.])|[A-Za-z_]\w*|\*\*|<<=|>>=|\+\+|--|[-+*/%&^|]=|<<|>>|&&|\|\||"
    r"[<>=!]=|[-+*/%<>=!~&|^?:,()\[\]])",
    re.ASCII,
)
_LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %", "**")
_ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^=")
_MAX_DEPTH = 12
"""Parentheses, assignments and variables that hold expressions, inside each other."""


def evaluate(text: str, shell: Shell, depth: int = 0) -> str:
    """Return the number that an expression gives, with the marks of what it depends on; unknown counts as 0."""
    return _Expression(text, shell, depth).value()


class _Expression:
    def __init__(self, text: str, shell: Shell, depth: int) -> None:
        self._shell = shell
        self._depth = depth
        self._marks = marks(text)
        self._text = text = plain(text).strip()
        shell.record.spend(1 + len(text))
        self._tokens: list[str] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self._wrong()
            self._tokens.append(token[1])
            at = token.end()
        self._at = 0

    def value(self) -> str:
        if not self._tokens:
            return "0"
        number = self._comma(True)
        if self._at < len(self._tokens):
            raise self._wrong()
        return f"{number}{self._marks}"

    def _wrong(self) -> Unreadable:
        return Unreadable(f"the arithmetic {_short(self._text)} cannot be read")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"the arithmetic {_short(self._text)} is nested too deeply")

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *tokens: str) -> str:
        token = self._next()
        if token and token in tokens:
            self._at += 1
            return token
        return ""

    def _comma(self, live: bool) -> int:
        value = self._assignment(live)
        while self._take(","):
            value = self._assignment(live)
        return value

    def _assignment(self, live: bool) -> int:
        self._enter()
        start = self._at
        if (place := self._place(live)) and (operator := self._take(*_ASSIGNS)):
            value = self._assignment(live)
            if operator != "=":
                value = self._apply(operator[:-1], self._read(place, live), value, live)
            self._write(place, value, live)
        else:
            self._at = start
            value = self._condition(live)
        self._depth -= 1
        return value

    def _condition(self, live: bool) -> int:
        value = self._binary(0, live)
        if not self._take("?"):
            return value
        first = self._assignment(live and bool(value))
        if not self._take(":"):
            raise self._wrong()
        second = self._assignment(live and not value)
        return first if value else second

    def _binary(self, level: int, live: bool) -> int:
        if level == len(_LEVELS):
            return self._unary(live)
        value = self._binary(level + 1, live)
        while operator := self._take(*_LEVELS[level].split()):
            if operator == "**":
                value = self._apply(operator, value, self._binary(level, live), live)
            elif operator in ("&&", "||"):
                decided = bool(value) == (operator == "||")
                other = self._binary(level + 1, live and not decided)
                value = int(bool(value) if decided else bool(other))
            else:
                value = self._apply(operator, value, self._binary(level + 1, live), live)
        return value

    def _unary(self, live: bool) -> int:
        if operator := self._take("++", "--"):
            place = self._place(live)
            if place is None:
                raise self._wrong()
            value = _wrapped(self._read(place, live) + (1 if operator == "++" else -1))
            self._write(place, value, live)
            return value
        if operator := self._take("-", "+", "!", "~"):
            self._enter()
            value = self._unary(live)
            self._depth -= 1
            return {"-": _wrapped(-value), "+": value, "!": int(not value), "~": ~value}[operator]
        if self._take("("):
            value = self._comma(live)
            if not self._take(")"):
                raise self._wrong()
            return value
        token = self._next()
        if token[:1].isdigit():
            self._at += 1
            return self._number(token)
        place = self._place(live)
        if place is None:
            raise self._wrong()
        value = self._read(place, live)
        if operator := self._take("++", "--"):
            self._write(place, _wrapped(value + (1 if operator == "++" else -1)), live)
        return value

    def _number(self, token: str) -> int:
        base, _, digits = token.rpartition("#")
        try:
            if base:
                return _wrapped(int(digits, int(base)))
            octal = len(token) > 1 and token[0] == "0" and token[1] not in "xX"
            return _wrapped(int(token, 8 if octal else 0))
        except ValueError:
            raise self._wrong() from None

    def _place(self, live: bool) -> tuple[str, int | str | None] | None:
        """Read a variable, with a subscript if it has one."""
        name = self._next()
        if not re.match(r"[A-Za-z_]", name):
            return None
        self._at += 1
        if not self._take("["):
            return name, None
        index = self._comma(live)
        if not self._take("]"):
            raise self._wrong()
        return name, index

    def _read(self, place: tuple[str, int | str | None], live: bool) -> int:
        if not live:
            return 0
        name, index = place
        value = self._shell.get(name)
        if isinstance(value, dict):
            value = value.get(index or 0, "")
        if value is None:
            self._marks += self._shell.record.unknowns.mark(f"${name}, which is not set")
            return 0
        self._enter()
        result = evaluate(value, self._shell, self._depth)
        self._depth -= 1
        self._marks += marks(result)
        return int(plain(result))

    def _write(self, place: tuple[str, int | str | None], value: int, live: bool) -> None:
        if not live:
            return
        name, index = place
        text = f"{value}{self._marks}"
        if index is None:
            self._shell.set(name, text)
            return
        old = self._shell.variables.get(name)
        array: Array = dict(old) if isinstance(old, dict) else {}
        self._shell.set(name, array | {index: text})

    def _apply(self, operator: str, left: int, right: int, live: bool) -> int:
        if not live:
            return 0
        if operator in ("/", "%"):
            if right == 0:
                if self._marks:
                    return 0
                raise Unreadable(f"the arithmetic {_short(self._text)} divides by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return _wrapped(quotient if operator == "/" else left - quotient * right)
        if operator == "**":
            if right < 0:
                raise self._wrong()
            return _wrapped(pow(left, right, 1 << 64))
        return _wrapped(int(_OPERATIONS[operator](left, right)))


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63), "<": lambda a, b: a < b, ">": lambda a, b: a > b, "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "&": lambda a, b: a & b,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip


def _wrapped(number: int) -> int:
    """Return a number as 64 bits with a sign hold it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _short(text: str) -> str:
    return repr(text.strip() if len(text) < 60 else f"{text[:57].strip()}...")
