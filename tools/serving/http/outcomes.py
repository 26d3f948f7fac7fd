"""How requests ended, for the log and the figures: by words, never by what was in them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from agentloop.sandboxes.base import CellResult, ExecutionResult


def note(request: Request, outcome: str) -> None:
    """What the request's line in the log says."""
    request.scope["state"]["outcome"] = outcome


def request_id(request: Request) -> str:
    identifier: str = request.scope["state"]["request_id"]
    return identifier


def of_execution(result: ExecutionResult) -> str:
    if not result.compiled:
        return "not_compiled"
    if result.timed_out:
        return "timeout"
    if result.oom:
        return "oom"
    return "success" if result.ok else "failed"


def of_cell(result: CellResult) -> str:
    if result.session_ended:
        return "session_ended"
    if result.timed_out:
        return "timeout"
    return "success" if result.ok else "failed"


def answer(body: Any, status: int = 200) -> Response:
    """A JSON response. ASCII, since names of files may hold what UTF-8 cannot."""
    return Response(json.dumps(body).encode(), status, media_type="application/json")


def display(shown: Mapping[str, str | bytes]) -> dict[str, str]:
    """What a cell shows, as Jupyter writes it: bytes are base64."""
    return {kind: to_base64(value) if isinstance(value, bytes) else value for kind, value in shown.items()}


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
