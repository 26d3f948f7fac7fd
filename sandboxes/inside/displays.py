"""Displays of a cell besides its printed text: values, images, figures."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_RICH = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
}
_MAX_TEXT = 1 << 16
_MAX_LINES = 200


class Displays:
    """Writes displays into a pipe: a line of JSON with sizes, followed by the contents."""

    def __init__(self, to_json: Callable[[Any], str]) -> None:
        self._to_json = to_json
        self._fd = -1
        self._room = 0
        self._shown: set[int] = set()

    def begin(self, fd: int, limit: int) -> None:
        self._fd, self._room = fd, limit
        self._shown = set()

    def end(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def display(self, *values: Any) -> None:
        """Show values, as in a notebook."""
        for value in values:
            self.show(value)

    def show(self, value: Any) -> None:
        if _is_figure(value):
            self._shown.add(id(value))
            self._write([("text/plain", repr(value).encode()), ("image/png", _png(value))])
            return
        parts = [("text/plain", repr(value).encode(errors="backslashreplace"))]
        for method, kind in _RICH.items():
            if not isinstance(value, type) and (content := _rich(value, method)) is not None:
                parts.append((kind, content))
        self._write(parts)

    def figures(self) -> None:
        """Show the open figures and close them."""
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is None:
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if id(figure) not in self._shown:
                self.show(figure)
        pyplot.close("all")

    def error(self, name: str, value: str, lines: list[str]) -> None:
        if len(lines) > _MAX_LINES:
            lines = [*lines[: _MAX_LINES // 2], "  ...", *lines[-_MAX_LINES // 2 :]]
        lines = [line[:_MAX_TEXT] for line in lines]
        self._frame({"error": {"name": name, "value": value[:_MAX_TEXT], "traceback": lines}}, [])

    def _write(self, parts: list[tuple[str, bytes]]) -> None:
        """Write a display. If it does not fit, write only its text, or nothing."""
        size = sum(len(content) for _, content in parts)
        if size > self._room:
            parts = parts[:1]
            size = len(parts[0][1])
            self._frame({"truncated": True}, [])
        if size <= self._room:
            self._room -= size
            self._frame({"display": [[kind, len(content)] for kind, content in parts]}, [c for _, c in parts])

    def _frame(self, header: dict[str, Any], contents: list[bytes]) -> None:
        if self._fd < 0:
            return
        view = memoryview(b"".join([self._to_json(header).encode(), b"\n", *contents]))
        while view:
            view = view[os.write(self._fd, view) :]


def _rich(value: Any, method: str) -> bytes | None:
    """Return the result of a display method; None if it is missing, fails or declines."""
    try:
        content = getattr(value, method)()
    except Exception:
        return None
    if isinstance(content, tuple):  # content and metadata
        content = content[0] if content else None
    if isinstance(content, str):
        return content.encode(errors="backslashreplace")
    return content if isinstance(content, bytes) else None


def _is_figure(value: Any) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
