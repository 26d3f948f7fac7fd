"""Say in the log where a tool raised: once for each place, since every episode may come by there."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType

_logger = logging.getLogger(__name__)

_OURS = str(Path(__file__).parent)
_told: set[tuple[str, type[BaseException], str, int]] = set()


def tell_once(tool: str, error: BaseException) -> None:
    """The model reads one line; whoever wrote the tool wants the traceback."""
    outer, inner = _own_frames(error.__traceback__)
    file, line = (inner.tb_frame.f_code.co_filename, inner.tb_lineno) if inner is not None else ("", 0)
    place = (tool, type(error), file, line)
    if place in _told:
        return
    _told.add(place)
    _logger.warning(
        "The tool %r raised. Its call failed, the model reads the last line; this is said once.",
        tool,
        exc_info=(type(error), error, outer),
    )


def _own_frames(frames: TracebackType | None) -> tuple[TracebackType | None, TracebackType | None]:
    """The traceback from the first frame that is not agentloop's, and its innermost frame."""
    outer = frames
    while outer is not None and outer.tb_next is not None and outer.tb_frame.f_code.co_filename.startswith(_OURS):
        outer = outer.tb_next
    inner = outer
    while inner is not None and inner.tb_next is not None:
        inner = inner.tb_next
    return outer, inner
