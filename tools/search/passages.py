"""What retrieval gives, and how a model reads it."""

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
    """Higher is better; NaN where the server gives none."""

    @property
    def contents(self) -> str:
        """Title and text as Search-R1's corpora have them: clients split at the first line break."""
        return f'"{self.title}"\n{self.text}'


class Retriever(Protocol):
    """Finds passages for queries."""

    async def start(self) -> None:
        """Raises `UserError` where it cannot be used."""

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """For each query at most `topk` passages, best first. Raises `ToolError` where retrieval fails."""
        ...

    async def close(self) -> None: ...


def passage_of(document: dict[str, Any], score: float = math.nan) -> Passage:
    """From a corpus line or a server's answer: `contents` ("title\\ntext"), or `title` and `text`. Raises `ValueError`
    where there is neither."""
    identifier = str(document.get("id", document.get("_id", "")))
    if isinstance(contents := document.get("contents"), str):
        title, _, rest = contents.partition("\n")
        return Passage(identifier, title.strip().strip('"'), rest.strip(), score)
    if isinstance(text := document.get("text"), str):
        return Passage(identifier, str(document.get("title") or ""), text, score)
    raise ValueError("a document needs `contents`, or `title` and `text`, as strings")


def valid(text: str) -> str:
    """Without lone surrogates, which JSON may hold and no index takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_text(passages: Sequence[Passage], *, max_chars: int) -> str:
    """Numbered, with titles, at most `max_chars` characters of each text: the wording of Search-R1."""
    if not passages:
        return "Nothing was found."
    lines = []
    for number, passage in enumerate(passages, 1):
        text = passage.text if len(passage.text) <= max_chars else passage.text[: max_chars - 3] + "..."
        lines.append(f"Doc {number}(Title: {passage.title}) {text}")
    return "\n".join(lines)
