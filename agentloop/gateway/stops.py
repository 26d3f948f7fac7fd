"""Stop strings: a turn ends with the token that completes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentloop.engines.base import FinishReason, Generation
from agentloop.messages import ParsedTurn
from agentloop.rendering.base import Renderer


def cut_at_stop(generation: Generation, stop: Sequence[str], renderer: Renderer) -> Generation:
    """The turn up to the token with which its text has one of the strings; the turn itself where it has none.

    What is kept was sampled as it stands: the next request goes on behind it.
    """
    ids = generation.ids

    def has_one(length: int) -> bool:
        text = renderer.decode(ids[:length])
        return any(string in text for string in stop)

    if not stop or not has_one(len(ids)):
        return generation
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_one(middle) else (middle + 1, high)
    return Generation(ids[:low], generation.logprobs[:low], generation.versions[:low], FinishReason.STOP)


def without_stop(parsed: ParsedTurn, stop: Sequence[str]) -> ParsedTurn:
    """The turn as clients get it: its text ends before the string."""
    found = [place for string in stop if (place := parsed.content.find(string)) >= 0]
    return replace(parsed, content=parsed.content[: min(found)].strip()) if found else parsed
