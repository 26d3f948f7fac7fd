"""`Search`: lets the model search a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from agentloop.errors import UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.search.index import LocalIndex
from agentloop.tools.search.passages import Passage, Retriever, as_text
from agentloop.tools.search.server import RetrievalServer
from agentloop.tools.search.tantivy_index import TantivyIndex


class Search(Tool):
    """Search for passages that answer a question."""

    name = "search"

    def __init__(
        self,
        source: str,
        *,
        topk: int = 3,
        max_passage_chars: int = 1500,
        timeout: float = 30.0,
        token: str | None = None,
    ) -> None:
        """Open `source`: an index of `agentloop tools index` (SQLite's file or tantivy's folder) or a server's URL.

        A URL is the address of the route: http://host:port/retrieve. `topk` is the number of passages per query, and
        `max_passage_chars` the number of characters of each that the model sees. `timeout` is the maximum seconds of
        one attempt at a server, `token` its bearer token. Raises `UserError` for invalid limits.
        """
        if topk < 1 or max_passage_chars < 1:
            raise UserError("topk and max_passage_chars of search must be at least 1.")
        self.retriever: Retriever
        if source.startswith(("http://", "https://")):
            self.retriever = RetrievalServer(source, timeout=timeout, token=token)
        else:
            self.retriever = TantivyIndex(source) if Path(source).is_dir() else LocalIndex(source)
        self.timeout = 6 * timeout
        self._topk = topk
        self._max_chars = max_passage_chars

    async def start(self) -> None:
        await self.retriever.start()

    async def shutdown(self) -> None:
        await self.retriever.close()

    async def call(self, ctx: ToolContext, query: Annotated[str, "What to look for"]) -> ToolResult:
        (passages,) = await self.retrieve([query], self._topk)
        return ToolResult(as_text(passages, max_chars=self._max_chars), metrics={"found": float(len(passages))})

    async def retrieve(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages per query, for the route `/retrieve` of the daemon."""
        return await self.retriever.retrieve(queries, topk)
