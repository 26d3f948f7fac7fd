"""`ApiError`: ends one request; each dialect writes it in its own format."""

from __future__ import annotations


class ApiError(Exception):
    """Ends one request. Clients show `message`; programs read `code`.

    With `retry` the official clients send the request again. Other errors forbid it explicitly: clients would repeat
    some of them by default, although that never helps.
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry = retry

    @property
    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "true" if self.retry else "false"}
