"""`ApiClient`: sends requests to an API, with retries and helpful errors."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx

from agentloop.engines.api.protocol import Answer, ApiProtocol
from agentloop.engines.base import ContextExceeded
from agentloop.errors import EngineError, UserError, nearest
from agentloop.process.retries import RETRIED, seconds_before_retry
from agentloop.types.messages import valid_strings

_FINAL_CODES = ("insufficient_quota", "billing_not_active")
"""Error codes that come with an overload status although retries do not help."""
_TOO_LONG = (
    "context_length_exceeded",
    "maximum context length",
    "prompt is too long",
    "context window",
    "exceed context limit",
)
"""Texts by which services report that a prompt exceeds the model's context."""
_CONNECT_SECONDS = 15.0


class ApiClient:
    """Client of one event loop that runs at most `concurrency` requests at once."""

    def __init__(
        self,
        protocol: ApiProtocol,
        *,
        model: str,
        base_url: str | None,
        api_key_env: str | None,
        headers: dict[str, str],
        concurrency: int,
        attempts: int,
        timeout: float,
        pause: float,
    ) -> None:
        self._protocol = protocol
        self._model = model
        self.url = (base_url or protocol.default_url).rstrip("/")
        self._key_variable = api_key_env or protocol.key_variable
        key = os.environ.get(self._key_variable)
        if not key and (base_url is None or api_key_env is not None):
            raise UserError(
                f"The environment variable {self._key_variable} is not set, but {self.url} needs an API key. Set it, "
                "or name another variable in engine.options.api_key_env."
            )
        try:
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers=headers | (protocol.headers(key) if key else {}),
                timeout=httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS), pool=None),
                limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"engine.options.base_url is {base_url!r}: {error}. Set a URL that ends in /v1.") from error
        self._attempts = attempts
        self._pause = pause
        self._models: list[str] = []
        """Models that the service lists."""

    async def start(self) -> None:
        """Fetch the list of models. Raises `UserError` if the service does not respond or rejects the key."""
        try:
            response = await self._client.get("/models")
        except (httpx.RequestError, httpx.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise UserError(
                f"No response from {self.url}: {reason}. Start the server, or set engine.options.base_url to a URL "
                "that ends in /v1."
            ) from error
        if response.status_code in (401, 403):
            raise self._refused_key(response)
        try:
            self._models = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            self._models = []  # some services have no list; the first request shows problems

    async def send(self, body: dict[str, Any]) -> tuple[Answer, int]:
        """Return the answer to a request, and the number of failed attempts before it.

        U+FFFD replaces lone surrogates in both, because no request can contain them. Raises `ContextExceeded`,
        `EngineError`, or `UserError` if no request could ever work.
        """
        problem, body = "", valid_strings(body)
        for attempt in range(1, self._attempts + 1):
            headers = None
            try:
                response = await self._client.post(self._protocol.path, json=body)
            except httpx.RequestError as error:
                problem = f"{type(error).__name__} {error}".strip()
            else:
                if response.is_success:
                    try:
                        return self._protocol.answer(valid_strings(response.json())), attempt - 1
                    except (LookupError, TypeError, ValueError, RecursionError) as error:
                        problem = f"invalid response: {type(error).__name__}: {error}"
                else:
                    problem, headers = f"status {response.status_code}: {_message(response)}", response.headers
                    if response.status_code not in RETRIED or _code(response) in _FINAL_CODES:
                        raise self._refusal(response, problem)
            if attempt < self._attempts:
                await asyncio.sleep(seconds_before_retry(attempt, self._pause, headers))
        raise EngineError(f"no valid response from {self.url} in {self._attempts} attempts: {problem}")

    async def close(self) -> None:
        await self._client.aclose()

    def _refusal(self, response: httpx.Response, problem: str) -> Exception:
        text = f"{_code(response)} {_message(response)}".lower()
        if response.status_code == 401:
            return self._refused_key(response)
        if response.status_code == 404:
            listed = f" It lists: {', '.join(self._models[:8])}." if self._models else ""
            return UserError(
                f"{self.url} does not serve the model {self._model!r}: {_message(response)}."
                f"{nearest(self._model, self._models)}{listed} Set model to one that it serves, and "
                "engine.options.base_url to a URL that ends in /v1."
            )
        if response.status_code in (400, 413, 422) and any(each in text for each in _TOO_LONG):
            return ContextExceeded(f"{self.url}: {_message(response)}")
        return EngineError(f"{self.url} rejected the request: {problem}")

    def _refused_key(self, response: httpx.Response) -> UserError:
        return UserError(
            f"{self.url} rejects the API key (status {response.status_code}: {_message(response)}). Set the "
            f"environment variable {self._key_variable} to a valid key, or name another variable in "
            "engine.options.api_key_env."
        )


def _error(response: httpx.Response) -> dict[str, Any]:
    """Return the error object of a response; services put it in different places."""
    try:
        body = response.json()
    except ValueError:
        return {}
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": error}


def _message(response: httpx.Response) -> str:
    error = _error(response)
    text = error.get("message") or error.get("detail") or response.text or response.reason_phrase
    return " ".join(str(text).split())[:300].rstrip(".")


def _code(response: httpx.Response) -> str:
    return str(_error(response).get("code") or "")
