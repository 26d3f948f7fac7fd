"""Convert the token stream of a trajectory to pieces of text for the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentloop.rendering.transcript import is_transcript, text_of_ids
from agentloop.types.trajectory import Trajectory
from agentloop.types.trajectory_io import from_dict

Decode = Callable[[Sequence[int]], str]

_PARTIAL = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 8
"""Largest number of tokens per character; longer invalid sequences are shown as decoded."""


def shown(data: dict[str, Any], decode: Decode | None) -> dict[str, Any]:
    """Return a stored trajectory with its segments as text, or as ids if `decode` is None.

    A sampled segment has `pieces`, `ids`, `logprobs` and `versions`, with one entry per piece; the others have `text`.
    """
    trajectory = from_dict(data)
    if is_transcript(trajectory.ids):
        decode = text_of_ids
    segments = []
    for segment, written in zip(trajectory.segments, data["segments"], strict=True):
        ids = trajectory.ids[segment.start : segment.end]
        entry: dict[str, Any] = {"kind": str(segment.kind), "start": segment.start, "end": segment.end}
        if segment.images:
            entry["images"] = written["images"]
        if segment.kind == "sampled":
            entry |= _sampled(trajectory, segment.start, segment.end, decode or _numbers)
        else:
            entry["text"] = (decode or _numbers)(ids)
        segments.append(entry)
    head = {key: value for key, value in data.items() if key not in ("segments", "branches")}
    return {**head, "segments": segments, "branches": [shown(branch, decode) for branch in data.get("branches", ())]}


def _sampled(trajectory: Trajectory, start: int, end: int, decode: Decode) -> dict[str, Any]:
    ids = trajectory.ids[start:end]
    logprobs, versions = trajectory.logprobs[start:end], trajectory.versions[start:end]
    pieces = pieces_of(ids, decode)
    firsts = np.cumsum([0, *(count for _, count in pieces)])[:-1]
    return {
        "pieces": [text for text, _ in pieces],
        "ids": [list(ids[first : first + count]) for first, (_, count) in zip(firsts, pieces, strict=True)],
        "logprobs": [
            _rounded(float(logprobs[first : first + count].sum()))
            for first, (_, count) in zip(firsts, pieces, strict=True)
        ],
        "versions": [int(versions[first]) for first in firsts],
    }


def _rounded(logprob: float) -> float | None:
    """Return a log-probability for JSON; None if it is unknown."""
    return None if math.isnan(logprob) else round(logprob, 5)


def pieces_of(ids: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """Return the text and token count of each piece: one token, or all tokens of one character."""
    pieces: list[tuple[str, int]] = []
    start = 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        if text.endswith(_PARTIAL) and end < len(ids) and end - start < _LONGEST_CHARACTER:
            continue
        pieces.append((text, end - start))
        start = end
    return pieces


def _numbers(ids: Sequence[int]) -> str:
    return "".join(f"‹{token}›" for token in ids)
