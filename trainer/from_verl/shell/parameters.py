"""What the operators of `${name...}` make of a value."""

from __future__ import annotations

from agentloop.trainer.from_verl.shell.patterns import Pattern


def trimmed(value: str, operator: str, pattern: Pattern) -> str:
    """Remove the shortest (`#`, `%`) or longest (`##`, `%%`) match at the start or at the end."""
    if operator.startswith("#"):
        lengths = pattern.lengths(value)
        return value[lengths[-1 if operator == "##" else 0] :] if lengths else value
    starts = range(len(value) + 1) if operator == "%%" else range(len(value), -1, -1)
    for start in starts:
        if pattern.matches(value[start:]):
            return value[:start]
    return value


def replaced(value: str, operator: str, pattern: Pattern, replacement: str) -> str:
    """Replace the first match (`/`), all (`//`), or one at the start (`/#`) or at the end (`/%`); longest ones."""
    if operator == "/#":
        lengths = pattern.lengths(value)
        return replacement + value[lengths[-1] :] if lengths else value
    if operator == "/%":
        start = next((start for start in range(len(value) + 1) if pattern.matches(value[start:])), None)
        return value if start is None else value[:start] + replacement
    parts: list[str] = []
    start = 0
    while start < len(value):
        lengths = [length for length in pattern.lengths(value, start) if length]
        if not lengths:
            parts.append(value[start])
            start += 1
            continue
        parts.append(replacement)
        start += lengths[-1]
        if operator == "/":
            break
    return "".join(parts) + value[start:]


def cased(value: str, operator: str) -> str:
    """Change the case of the first character (`^`, `,`) or of all (`^^`, `,,`)."""
    change = str.upper if operator[0] == "^" else str.lower
    return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]


def sliced(length: int, offset: int, count: int | None) -> slice:
    """Return the slice of `${name:offset:count}` in something of a length."""
    start = max(length + offset, 0) if offset < 0 else min(offset, length)
    if count is None:
        return slice(start, length)
    return slice(start, max(length + count, start) if count < 0 else start + count)
