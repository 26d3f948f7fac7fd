"""Passages, the retrievers that find them, and their text for the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True, frozen=True)
class Passage:
    """One piece of a corpus."""

    id: str
    title: str
    text: str
    score: float = math.nan
    """Relevance, higher is better; NaN if the server returns none."""

    @property
    def contents(self) -> str:
        """Title and text in the form of Search-R1's corpora, which clients split at the first line break."""
        return f'"{self.title}"\n{self.text}'


class Retriever(Protocol):
    """Finds passages for queries."""

    async def start(self) -> None:
        """Prepare the retriever. Raises `UserError` if it is not usable."""

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages per query, best first. Raises `ToolError` if retrieval fails."""
        ...

    async def close(self) -> None: ...


def passage_of(document: dict[str, Any], score: float = math.nan) -> Passage:
    r"""Parse a line of a corpus or a server's answer: `contents` ("title\ntext"), or `title` and `text`.

    `contents` of a single line have no title. Raises `ValueError` for a document of another form.
    """
    identifier = str(document.get("id", document.get("_id", "")))
    if isinstance(contents := document.get("contents"), str):
        title, separator, rest = contents.partition("\n")
        if not separator:
            return Passage(identifier, "", contents.strip(), score)
        return Passage(identifier, title.strip().strip('"'), rest.strip(), score)
    if isinstance(text := document.get("text"), str):
        return Passage(identifier, str(document.get("title") or ""), text, score)
    raise ValueError("a document needs `contents`, or `title` and `text`, as strings")


def as_text(passages: Sequence[Passage], *, max_chars: int) -> str:
    """Format passages in the wording of Search-R1, with at most `max_chars` characters of each title and each text."""
    if not passages:
        return "Nothing was found."
    lines = []
    for number, passage in enumerate(passages, 1):
        title, text = _cut(passage.title, max_chars), _cut(passage.text, max_chars)
        lines.append(f"Doc {number}(Title: {title}) {text}")
    return "\n".join(lines)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
