"""Outcomes of requests as single words for the log and the metrics, and JSON answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException, Request, Response

from agentloop.sandboxes.interface.sandbox import CellResult, ExecutionResult

SHUTTING_DOWN = "The daemon is shutting down: send the request to another one, or again when it is back."


def note(request: Request, outcome: str) -> None:
    """Set the outcome in the log line of the request."""
    request.scope["state"]["outcome"] = outcome


def request_id(request: Request) -> str:
    """Return the id of a request."""
    identifier: str = request.scope["state"]["request_id"]
    return identifier


def overdue(request: Request) -> HTTPException:
    """Return 504 to a client that will soon stop waiting, because it retries 504 but not its own timeout."""
    note(request, "overdue")
    return HTTPException(504, "The work took longer than the client waits, and was stopped: try again later.")


def of_execution(result: ExecutionResult) -> str:
    """Return the outcome of an execution."""
    if not result.compiled:
        return "not_compiled"
    if result.timed_out:
        return "timeout"
    if result.oom:
        return "oom"
    return "success" if result.ok else "failed"


def of_cell(result: CellResult) -> str:
    """Return the outcome of a cell."""
    if result.session_ended:
        return "session_ended"
    if result.timed_out:
        return "timeout"
    return "success" if result.ok else "failed"


def answer(body: Any, status: int = 200) -> Response:
    """Return a JSON response. It is ASCII, since file names may contain bytes that are not UTF-8."""
    return Response(json.dumps(body).encode(), status, media_type="application/json")


def display(shown: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return a display in Jupyter's format: bytes are base64."""
    return {kind: to_base64(value) if isinstance(value, bytes) else value for kind, value in shown.items()}


def to_base64(content: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(content).decode()
