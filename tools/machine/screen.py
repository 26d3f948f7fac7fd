"""`Screen`: what a person would see on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from agentloop.errors import UserError


class Screen:
    """The screen of a terminal, drawn by pyte. Control sequences that pyte does not support change nothing."""

    def __init__(self, lines: int, columns: int) -> None:
        pyte = load_pyte()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(_Lenient(self._screen))

    def feed(self, data: bytes) -> None:
        """Draw what a program has printed."""
        with contextlib.suppress(ValueError):  # pyte takes characters such as ² for digits
            self._stream.feed(data)

    def text(self) -> str:
        """Return the lines of the screen, without spaces at their ends and empty lines at the end."""
        # pyte's own `display` fails for half of a wide character.
        rows = [self._screen.buffer[number] for number in range(self._screen.lines)]
        lines = ["".join(row[column].data for column in range(self._screen.columns)) for row in rows]
        return "\n".join(line.rstrip() for line in lines).rstrip("\n")


class _Lenient:
    """Passes control sequences to a screen, and ignores those in a form that its methods do not take.

    They would raise, and the output after them would be lost. vim and others send some.
    """

    def __init__(self, screen: Any) -> None:
        self._screen = screen

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._screen, name)

        def handle(*arguments: Any, **more: Any) -> None:
            with contextlib.suppress(TypeError, UnboundLocalError):
                method(*arguments, **more)

        return handle


def load_pyte() -> Any:
    """Import pyte. Raises `UserError` if it is not installed."""
    try:
        import pyte
    except ImportError as error:
        raise UserError("The tool terminal needs pyte: `pip install 'agentloop[harbor]'`.") from error
    return pyte
