"""Remove the stop strings of requests from the text for clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentloop.types.messages import ParsedTurn


def without_stop(parsed: ParsedTurn, stop: Sequence[str]) -> tuple[ParsedTurn, str | None]:
    """Return the turn with its text cut before the first stop string, and that string; its tokens keep the string."""
    found = [(place, string) for string in stop if (place := parsed.content.find(string)) >= 0]
    if not found:
        return parsed, None
    place, string = min(found)
    return replace(parsed, content=parsed.content[:place].strip()), string
