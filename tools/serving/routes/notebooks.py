"""POST /run_jupyter: the notebook protocol of SandboxFusion. Cells run in order, in a new session.

An exception does not stop later cells. Both time limits apply, and the answer has the cells that ran before a limit.
(SandboxFusion applies one of them, and then answers without cells.)
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import Field

from agentloop.errors import SandboxError, UserError
from agentloop.sandboxes.interface.sandbox import CellResult, SandboxBusyError, Session, SessionSettings
from agentloop.tools.serving.http import outcomes
from agentloop.tools.serving.http.bodies import Files, LenientBody, MemoryOrDefault, Paths, Seconds, documented
from agentloop.tools.serving.http.deadlines import OverdueError, seconds_since, within
from agentloop.tools.serving.http.disconnects import unless_gone
from agentloop.tools.serving.routes import fusion
from agentloop.tools.serving.state.daemon import Daemon

_PATIENCE_SECONDS = 9.5
"""Seconds that clients of SandboxFusion wait beyond the time limit, minus half a second for the daemon's 504."""
_OVERHEAD = 3.0
"""Seconds besides its limit that a notebook may take: to start its session, interrupt its last cell, and answer."""
_GRACE_SECONDS = 60.0

router = APIRouter(tags=["SandboxFusion"])


class RunJupyter(LenientBody):
    """The body of /run_jupyter."""

    cells: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    cell_timeout: Annotated[float, Field(ge=0)] = 0.0
    """Seconds for each cell; 0 means that only the total limit applies."""
    total_timeout: Seconds = 45.0
    memory_limit_MB: MemoryOrDefault = -1
    kernel: Literal["python3"] = "python3"
    files: Files = Field(default_factory=dict)
    fetch_files: Paths = Field(default_factory=list)


@dataclass(slots=True)
class _Notebook:
    """The results of a notebook."""

    cells: list[CellResult] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    timed_out: bool = False
    ended: str = ""
    """Reason why the session ended before the last cell."""


@router.post("/run_jupyter", openapi_extra=documented(RunJupyter))
async def run_jupyter(request: Request) -> Response:
    """Run cells in a new session. The status is "Success" even if cells raised, because they contain the errors."""
    daemon = Daemon.of(request)
    body = await daemon.reader.parse(request, RunJupyter)
    try:
        left = body.total_timeout + _PATIENCE_SECONDS - seconds_since(request)
        notebook = await unless_gone(request, within(left, _queued(daemon, body, left)))
    except OverdueError as error:
        raise outcomes.overdue(request) from error
    except SandboxBusyError as error:
        outcomes.note(request, "no_slot")
        raise HTTPException(504, str(error)) from error
    except (SandboxError, UserError) as error:
        failed = fusion.failure(request, error)
        outcomes.note(request, "sandbox_error")
        return outcomes.answer({**failed, "driver": failed["run_result"], "cells": []})
    outcomes.note(request, "timeout" if notebook.timed_out else "session_ended" if notebook.ended else "success")
    return outcomes.answer(_body(request, notebook))


async def _queued(daemon: Daemon, body: RunJupyter, seconds: float) -> _Notebook:
    """Run the notebook if it gets a place early enough to end within `seconds`."""
    patience = max(seconds - body.total_timeout - _OVERHEAD, 0.0)
    try:
        # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with the place.
        async with asyncio.timeout(patience):
            await daemon.notebooks.acquire()
    except TimeoutError as error:
        raise SandboxBusyError(f"No place for a notebook became free in {patience:g} s: try again later.") from error
    try:
        return await _run(daemon, body)
    finally:
        daemon.notebooks.release()


async def _run(daemon: Daemon, body: RunJupyter) -> _Notebook:
    settings = SessionSettings(
        memory_mb=daemon.settings.memory_mb if body.memory_limit_MB == -1 else body.memory_limit_MB,
        files=body.files,
        idle_seconds=body.total_timeout + _GRACE_SECONDS,
    )
    session = await daemon.sandbox.session(settings)
    notebook = _Notebook()
    try:
        await _run_cells(daemon, body, session, notebook)
        if body.fetch_files and not notebook.ended:
            notebook.files = await session.read_files(body.fetch_files)
    finally:
        await session.close()
    return notebook


async def _run_cells(daemon: Daemon, body: RunJupyter, session: Session, notebook: _Notebook) -> None:
    start = time.monotonic()
    for code in body.cells:
        left = body.total_timeout - notebook.seconds
        if left <= 0:
            notebook.timed_out = True
            return
        result = await session.run(code, max_seconds=min(body.cell_timeout or left, left))
        daemon.check_end(result)
        daemon.metrics.count_execution(outcomes.of_cell(result))
        notebook.cells.append(result)
        notebook.seconds = time.monotonic() - start
        notebook.timed_out |= result.timed_out
        if result.session_ended:
            notebook.ended = result.session_ended
            return


def _body(request: Request, notebook: _Notebook) -> dict[str, Any]:
    reason = f"The session ended in cell {len(notebook.cells)}: {notebook.ended}." if notebook.ended else ""
    driver = {
        "status": "TimeLimitExceeded" if notebook.timed_out else "Finished",
        "execution_time": notebook.seconds,
        "return_code": None if notebook.timed_out else int(bool(notebook.ended)),
        "stdout": "",
        "stderr": reason,
    }
    return {
        "status": "Failed" if notebook.timed_out or notebook.ended else "Success",
        "message": "",
        "driver": driver,
        "cells": [_cell(result) for result in notebook.cells],
        **fusion.common(request, notebook.files),
    }


def _cell(result: CellResult) -> dict[str, Any]:
    error = result.error
    return {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "display": [outcomes.display(shown) for shown in result.displays],
        "error": [{"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}] if error else [],
        "timed_out": result.timed_out,
        "truncated": result.output_truncated,
    }
