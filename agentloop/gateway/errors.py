"""`ApiError`: an error in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Ends one request. Clients show `message`; programs read `code`."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


HEADERS = {"x-should-retry": "false"}
"""Headers of every error: without them the official clients retry some errors, and a retry helps with none of these."""
