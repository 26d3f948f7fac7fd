"""Glob patterns of the shell, in time that grows with pattern times text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CLASSES = {
    "alpha": str.isalpha, "digit": str.isdigit, "alnum": str.isalnum, "upper": str.isupper, "lower": str.islower,
    "space": str.isspace,
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class _Set:
    """`[a-z]`."""

    inside: str
    negated: bool

    def holds(self, character: str) -> bool:
        return self._listed(character) != self.negated

    def _listed(self, character: str) -> bool:
        at = 0
        while at < len(self.inside):
            end = self.inside.find(":]", at)
            if self.inside.startswith("[:", at) and end > 0:
                if _CLASSES.get(self.inside[at + 2 : end], str.isalnum)(character):
                    return True
                at = end + 2
            elif self.inside[at + 1 : at + 2] == "-" and at + 2 < len(self.inside):
                if self.inside[at] <= character <= self.inside[at + 2]:
                    return True
                at += 3
            elif self.inside[at] == character:
                return True
            else:
                at += 1
        return False


@dataclass(slots=True, frozen=True)
class Pattern:
    """A pattern: characters, sets, and the wildcards ? and *."""

    parts: tuple[str | _Set, ...]
    """Quoted characters have a backslash before them."""

    def lengths(self, text: str, start: int = 0) -> Sequence[int]:
        """Return the lengths of what matches in `text` from `start`, in rising order."""
        states = self._stars({0})
        found = [0] if len(self.parts) in states else []
        for count, character in enumerate(text[start:], 1):
            states = self._stars(
                {
                    place if self.parts[place] == "*" else place + 1
                    for place in states
                    if place < len(self.parts) and self._takes(self.parts[place], character)
                }
            )
            if not states:
                break
            if len(self.parts) in states:
                found.append(count)
        return found

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        found = self.lengths(text)
        return bool(found) and found[-1] == len(text)

    def _stars(self, states: set[int]) -> set[int]:
        reached = set(states)
        for place in states:
            while place < len(self.parts) and self.parts[place] == "*":
                place += 1
                reached.add(place)
        return reached

    @staticmethod
    def _takes(part: str | _Set, character: str) -> bool:
        if isinstance(part, _Set):
            return part.holds(character)
        return part in ("*", "?") or part[-1] == character


def pattern_of(pieces: Sequence[tuple[str, bool]]) -> Pattern:
    """Return the pattern of texts, of which quoted ones stand for themselves."""
    written = [(character, quoted) for text, quoted in pieces for character in text]
    parts: list[str | _Set] = []
    at = 0
    while at < len(written):
        character, quoted = written[at]
        at += 1
        if not quoted and character == "\\" and at < len(written):
            character, quoted = written[at][0], True
            at += 1
        if not quoted and character == "[" and (end := _end(written, at)):
            inside = "".join(each for each, _ in written[at:end])
            parts.append(_Set(inside.lstrip("!^") if inside[:1] in ("!", "^") else inside, inside[:1] in ("!", "^")))
            at = end + 1
        elif not quoted and character in "*?":
            parts.append(character)
        else:
            parts.append(f"\\{character}")
    return Pattern(tuple(parts))


def _end(written: Sequence[tuple[str, bool]], start: int) -> int:
    """Return the place of the bracket that closes a set, or 0."""
    at = start + (written[start : start + 1] in ([("!", False)], [("^", False)]))
    at += written[at : at + 1] == [("]", False)]
    while at < len(written):
        if written[at] == ("]", False):
            return at
        if written[at : at + 2] == [("[", False), (":", False)]:
            while at < len(written) and written[at : at + 2] != [(":", False), ("]", False)]:
                at += 1
            at += 1
        at += 1
    return 0
