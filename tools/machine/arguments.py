"""Checks of arguments that go into a box."""

from __future__ import annotations

from agentloop.tools.schema import ArgumentError


def encoded(text: str, name: str) -> bytes:
    """Encode the argument `name`. Raises `ArgumentError` for half of a surrogate pair, which UTF-8 cannot express."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name}: {text[error.start]!a} is half of a surrogate pair") from None


def check_path(path: str) -> None:
    """Raise `ArgumentError` if no file can have this path."""
    if "\0" in path:
        raise ArgumentError("path: a path contains no NUL character")
    encoded(path, "path")
