"""HTTP clients of environments that are servers. All failures of a server raise `EnvError`."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

from agentloop.errors import EnvError

_SHOWN = 500


def client_of(url: str, *, seconds: float | None, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client of the server at `url`, with its own cookies. Each wait for the server may take `seconds`."""
    return httpx.AsyncClient(base_url=url, timeout=seconds, headers=headers, verify=_trusted(), trust_env=False)


@contextmanager
def answering(url: str, path: str) -> Iterator[None]:
    """Raise `EnvError` if the server does not answer a request within the block."""
    try:
        yield
    except (httpx.TimeoutException, TimeoutError) as error:
        raise EnvError(f"the server {url} took too long for {path}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvError(f"the server {url} does not answer {path}: {type(error).__name__}: {error}") from error


def json_of(response: httpx.Response) -> Any:
    """Return the JSON value of an answer. Raises `EnvError` if the answer is an error or is not JSON."""
    if response.is_success:
        try:
            return response.json()
        except ValueError:
            pass
    raise refused(response)


def refused(response: httpx.Response) -> EnvError:
    """Return the `EnvError` for an answer with an error status."""
    said = f"{response.status_code}: {response.text[:_SHOWN]}"
    return EnvError(f"the server answered {response.request.method} {response.request.url} with {said}")


@cache
def _trusted() -> ssl.SSLContext:
    """Load the certificates once, because that takes longer than an episode of a small environment."""
    return ssl.create_default_context()
