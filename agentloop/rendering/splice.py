"""`Splice`: renders conversations of one shape by inserting contents into cached template text.

Running a template takes 100 us or more, and it writes the same text around every tool result. So each shape (the roles
and fields of the messages) is rendered once with sentinels as contents. The text between the sentinels is cached, as
token ids if added tokens delimit it. This works for templates that only insert contents: unchanged, stripped, or as
JSON. Rendering probes checks that.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentloop.rendering.encoding import TextEncoder

Slot = tuple[int, str]
"""(index of the message, field)."""
Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""messages -> text, always with the same tools and options."""

_PROBES = (
    "",
    " ",
    "\n",
    "  indented\n\n",
    "\tx ",
    "\"double\" 'single' \\ \\n",
    "{{ a }}{% b %}{# c #}",
    "<b>&amp;</b>",
    "[1, 2]",
    '{"k": null}',
    "é漢字🙂\u200b",
    "null",
)
_NAME_PROBES = ("get_x", "call-1")


def _same(text: str) -> str:
    return text


def _json(text: str) -> str:
    """Return the text as a JSON string without its quotes, which are literal text of the template."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


_TRANSFORMS: tuple[Callable[[str], str], ...] = (_same, str.strip, _json)


@dataclass(slots=True)
class Splice:
    """The template text of conversations of one shape, with insertion points for contents."""

    runs: list[tuple[list[int], tuple[str | Insert, ...]]] = field(default_factory=list)
    """Pairs of fixed ids and text with insertions, which is encoded together because no added token divides it."""
    last: list[int] = field(default_factory=list)
    """Ids after the last insertion."""
    at_start: bool = False
    """Whether the text begins the stream."""

    def fill(self, messages: Sequence[Mapping[str, Any]], encoder: TextEncoder) -> list[int]:
        """Return the ids of a conversation of this shape with the contents of `messages`."""
        ids: list[int] = []
        for fixed, parts in self.runs:
            ids += fixed
            text = "".join(
                [
                    part if isinstance(part, str) else part.transform(messages[part.message][part.field])
                    for part in parts
                ]
            )
            if text:
                ids += encoder.encode_plain(text, at_start=self.at_start and not ids)
        ids += self.last
        return ids


@dataclass(slots=True, frozen=True)
class Insert:
    """The position of a content, and the transform that the template applies to it."""

    message: int
    field: str
    transform: Callable[[str], str]


def make_splice(
    render: Render,
    messages: Sequence[Mapping[str, Any]],
    slots: Sequence[Slot],
    encoder: TextEncoder,
    *,
    at_start: bool,
) -> Splice | None:
    """Return the splice for the shape of `messages`; None if the template does more than insert the slots."""
    sentinels = {slot: f"z{number:03d}Qkx7w" for number, slot in enumerate(slots)}
    parts = _literal_parts(render(_filled(messages, sentinels)), sentinels)
    shown = {part for part in parts if not isinstance(part, str)}
    if any(name == "content" and (index, name) not in shown for index, name in slots):
        return None
    transforms = _transforms(render, messages, sentinels, parts)
    if transforms is None:
        return None
    splice = _compile(parts, transforms, encoder, at_start=at_start)
    return splice if _agrees(splice, render, messages, slots, encoder) else None


def _filled(messages: Sequence[Mapping[str, Any]], values: Mapping[Slot, str]) -> list[dict[str, Any]]:
    filled = [dict(message) for message in messages]
    for (index, name), value in values.items():
        filled[index][name] = value
    return filled


def _literal_parts(text: str, sentinels: Mapping[Slot, str]) -> list[str | Slot]:
    """Split the text at the sentinels."""
    slots = list(sentinels)
    pieces: list[str] = re.split(r"z(\d{3,})Qkx7w", text)
    parts = [slots[int(piece)] if index % 2 else piece for index, piece in enumerate(pieces)]
    return [part for part in parts if part != ""]


def _transforms(
    render: Render,
    messages: Sequence[Mapping[str, Any]],
    sentinels: Mapping[Slot, str],
    parts: Sequence[str | Slot],
) -> dict[Slot, Callable[[str], str]] | None:
    """Return the transform that the template applies to each slot; None if one of them is unknown.

    Templates treat the same field of all messages of one role alike, so these slots are probed together. The number of
    renders does not depend on the number of messages.
    """
    alike: dict[tuple[str, str], list[Slot]] = defaultdict(list)
    for index, name in sentinels:
        alike[messages[index]["role"], name].append((index, name))
    transforms: dict[Slot, Callable[[str], str]] = {}
    shown = set(parts)
    for (_, name), group in alike.items():
        candidates = list(_TRANSFORMS)
        for probe in _PROBES if name == "content" else _NAME_PROBES:
            if shown.isdisjoint(group):
                break
            text = render(_filled(messages, {**sentinels, **dict.fromkeys(group, probe)}))
            candidates = [
                transform
                for transform in candidates
                if text == _joined(parts, {**sentinels, **dict.fromkeys(group, transform(probe))})
            ]
        if not candidates:
            return None
        transforms |= dict.fromkeys(group, candidates[0])
    return transforms


def _joined(parts: Sequence[str | Slot], values: Mapping[Slot, str]) -> str:
    return "".join([part if isinstance(part, str) else values[part] for part in parts])


def _compile(
    parts: Sequence[str | Slot],
    transforms: Mapping[Slot, Callable[[str], str]],
    encoder: TextEncoder,
    *,
    at_start: bool,
) -> Splice:
    splice = Splice(at_start=at_start)
    fixed: list[int] = []
    run: list[str | Insert] = []

    def close_run() -> None:
        nonlocal fixed, run
        if any(not isinstance(part, str) for part in run):
            splice.runs.append((fixed, tuple(run)))
            fixed = []
        elif run:
            text = "".join(part for part in run if isinstance(part, str))
            fixed += encoder.encode_plain(text, at_start=at_start and not splice.runs and not fixed)
        run = []

    for part in parts:
        if not isinstance(part, str):
            run.append(Insert(*part, transforms[part]))
            continue
        for number, piece in enumerate(encoder.split(part)):
            if number % 2:
                close_run()
                fixed += encoder.encode_rendered(piece)
            elif piece:
                run.append(encoder.escaping.show(piece))
    close_run()
    splice.last = fixed
    return splice


def _agrees(
    splice: Splice,
    render: Render,
    messages: Sequence[Mapping[str, Any]],
    slots: Sequence[Slot],
    encoder: TextEncoder,
) -> bool:
    """Return whether splice and template agree on probes in all slots at once."""
    for turn in range(len(_PROBES)):
        values = {
            slot: probes[(turn + number) % len(probes)]
            for number, slot in enumerate(slots)
            for probes in [_PROBES if slot[1] == "content" else _NAME_PROBES]
        }
        filled = _filled(messages, values)
        if splice.fill(filled, encoder) != encoder.encode_rendered(render(filled), at_start=splice.at_start):
            return False
    return True
