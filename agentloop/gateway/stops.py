"""Remove the stop strings of requests from the text for clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentloop.types.messages import ParsedTurn


def without_stop(parsed: ParsedTurn, stop: Sequence[str]) -> ParsedTurn:
    """Return the turn with its text cut before the first stop string; its tokens keep the string."""
    found = [place for string in stop if (place := parsed.content.find(string)) >= 0]
    return replace(parsed, content=parsed.content[: min(found)].strip()) if found else parsed
