"""A display that is redrawn periodically, in a terminal or below the cell of a notebook."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live

if TYPE_CHECKING:
    from rich.console import RenderableType

_SECONDS = 0.25
"""Seconds between two drawings."""
_WIDTH = 100
"""Columns of the display in a notebook."""


class LiveDisplay(Protocol):
    """A display between `start` and `stop`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def live(console: Console, get_renderable: Callable[[], RenderableType]) -> LiveDisplay:
    """Return a display, not started, that shows the current result of `get_renderable`."""
    if console.is_jupyter:
        return NotebookDisplay(get_renderable)
    return Live(console=console, get_renderable=get_renderable, refresh_per_second=1 / _SECONDS)


class NotebookDisplay:
    """Output of a notebook cell that is updated in place. Unlike rich's own display, it needs no notebook extension."""

    def __init__(self, get_renderable: Callable[[], RenderableType]) -> None:
        self._get_renderable = get_renderable
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._draw_again, name="progress", daemon=True)
        self._handle: Any = None

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._drawing(), raw=True, display_id=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._handle.update(self._drawing(), raw=True)

    def _draw_again(self) -> None:
        while not self._stopped.wait(_SECONDS):
            self._handle.update(self._drawing(), raw=True)

    def _drawing(self) -> dict[str, str]:
        console = Console(record=True, file=io.StringIO(), force_jupyter=False, width=_WIDTH)
        console.print(self._get_renderable())
        html = console.export_html(code_format="<pre>{code}</pre>", inline_styles=True, clear=False)
        return {"text/html": html, "text/plain": console.export_text()}
