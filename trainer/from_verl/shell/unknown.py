"""Marks for what a script would get from the machine: outputs of programs, and variables that nobody set.

A mark is one private character of Unicode inside a value. It goes where the value goes and counts as empty in
conditions, so an override that depends on it can be named.
"""

from __future__ import annotations

import re

OUTPUT = "the output of"
"""Start of the descriptions of programs that did not run."""

_FIRST = 0xF0000
_LAST = 0xFFFFD
_MARK = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


class Unreadable(Exception):
    """A script that cannot be followed, with the reason."""


class Unknowns:
    """All marks of one script."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def mark(self, description: str) -> str:
        """Return the mark of what `description` names."""
        if len(self._marks) >= _LAST - _FIRST:
            raise Unreadable("it needs the output of too many programs")
        return self._marks.setdefault(description, chr(_FIRST + len(self._marks)))

    def described(self, value: str) -> list[str]:
        """Return what the marks in a value stand for."""
        found = set(_MARK.findall(value))
        return [description for description, mark in self._marks.items() if mark in found]


def marks(value: str) -> str:
    """Return the marks in a value."""
    return "".join(_MARK.findall(value))


def plain(value: str) -> str:
    """Remove all marks: an unknown value is empty."""
    return _MARK.sub("", value)


def safe(text: str) -> str:
    """Replace characters that would pass as marks, and those that no file can hold."""
    return re.sub("[\ud800-\udfff\0]", "\ufffd", _MARK.sub("\ufffd", text))
