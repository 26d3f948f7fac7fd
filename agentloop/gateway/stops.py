"""Stop strings of requests, which engines heed and clients do not want to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentloop.types.messages import ParsedTurn


def without_stop(parsed: ParsedTurn, stop: Sequence[str]) -> ParsedTurn:
    """The turn as clients get it: its text ends before the first of the strings, which its tokens hold."""
    found = [place for string in stop if (place := parsed.content.find(string)) >= 0]
    return replace(parsed, content=parsed.content[: min(found)].strip()) if found else parsed
