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

    Raises `ValueError` if it has neither.
    """
    identifier = str(document.get("id", document.get("_id", "")))
    if isinstance(contents := document.get("contents"), str):
        title, _, rest = contents.partition("\n")
        return Passage(identifier, title.strip().strip('"'), rest.strip(), score)
    if isinstance(text := document.get("text"), str):
        return Passage(identifier, str(document.get("title") or ""), text, score)
    raise ValueError("a document needs `contents`, or `title` and `text`, as strings")


def valid(text: str) -> str:
    """Replace lone surrogates, which JSON may contain and no index accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_text(passages: Sequence[Passage], *, max_chars: int) -> str:
    """Format passages in the wording of Search-R1, with at most `max_chars` characters of each text."""
    if not passages:
        return "Nothing was found."
    lines = []
    for number, passage in enumerate(passages, 1):
        text = passage.text if len(passage.text) <= max_chars else passage.text[: max_chars - 3] + "..."
        lines.append(f"Doc {number}(Title: {passage.title}) {text}")
    return "\n".join(lines)
