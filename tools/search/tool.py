"""`Search`: the model looks something up in a corpus."""

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
        """`source`: an index that `agentloop tools index` wrote (SQLite's file or tantivy's folder), or the URL of a
        retrieval server's route (http://host:port/retrieve). `topk`: passages a query; `max_passage_chars`: of each,
        what is shown. `timeout`: seconds of one try at a server; `token`: sent to it. Raises `UserError` for limits
        that cannot be.
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
        """The passages themselves, for `/retrieve` of the daemon. See `Retriever.retrieve`."""
        return await self.retriever.retrieve(queries, topk)
