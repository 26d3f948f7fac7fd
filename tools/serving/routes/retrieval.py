"""POST /retrieve: the search server protocol of Search-R1 and verl, answered by a tool that can `retrieve`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Protocol, runtime_checkable

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import Field

from agentloop.errors import ToolError
from agentloop.tools.search.passages import Passage
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import LenientBody, documented, refuse
from agentloop.tools.serving.http.deadlines import OverdueError, within
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.state.daemon import Daemon

_DEFAULT_TOPK = 3

router = APIRouter(tags=["search"])


@runtime_checkable
class Retriever(Protocol):
    """A tool that finds passages, like `search`."""

    timeout: float
    """Maximum seconds of one call."""

    async def retrieve(self, queries: list[str], topk: int) -> list[list[Passage]]:
        """Return for each query at most `topk` passages, the best first. Raises `ToolError` if that fails."""
        ...


class Retrieve(LenientBody):
    """The body of /retrieve."""

    queries: Annotated[list[str], Field(max_length=1024)] | None = None
    query: str | None = None
    """A single query, instead of `queries`."""
    topk: Annotated[int, Field(ge=1, le=1000)] | None = None
    return_scores: bool = False


@router.post("/retrieve", openapi_extra=documented(Retrieve))
async def retrieve(request: Request) -> Response:
    """Search.

    Answers {"result": [[{"document", "score"}, ...] for each query]}, or plain documents without `return_scores`.
    Answers 404 if the daemon has no tool that can retrieve.
    """
    daemon = Daemon.of(request)
    retriever = await _retriever(daemon)
    body = await daemon.reader.parse(request, Retrieve)
    queries = body.queries if body.queries is not None else [body.query] if body.query is not None else None
    if queries is None:
        refuse("queries", "Set queries, a list of strings, or query, a string.")
    try:
        work = retriever.retrieve(queries, body.topk or _DEFAULT_TOPK)
        found = await unless_gone(request, within(retriever.timeout, work))
    except OverdueError as error:
        raise outcomes.overdue(request) from error
    except ToolError as error:
        raise HTTPException(502, str(error)) from error
    return outcomes.answer({"result": [[_hit(passage, body.return_scores) for passage in hits] for hits in found]})


async def _retriever(daemon: Daemon) -> Retriever:
    """Return the first tool that can retrieve, started. Raises `HTTPException` 404."""
    for name, tool in daemon.toolbox.toolset.tools.items():
        if isinstance(tool, Retriever):
            await daemon.toolbox.ready(name)
            return tool
    detail = 'No tool of this daemon can retrieve: start it with --tool \'search={"source": "path/to/index"}\'.'
    raise HTTPException(404, detail)


def _hit(passage: Passage, with_score: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": passage.contents}
    if not with_score:
        return document
    return {"document": document, "score": None if math.isnan(passage.score) else passage.score}
