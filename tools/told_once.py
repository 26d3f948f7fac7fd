"""Say in the log where a tool raised: once for each place, since every episode may come by there."""

from __future__ import annotations

import logging

from agentloop.errors import user_frames

_logger = logging.getLogger(__name__)

_told: set[tuple[str, type[BaseException], str, int]] = set()


def tell_once(tool: str, error: BaseException) -> None:
    """The model reads one line; whoever wrote the tool wants the traceback."""
    frames = user_frames(error)
    file, line = (frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno) if frames else ("", 0)
    place = (tool, type(error), file, line)
    if place in _told:
        return
    _told.add(place)
    _logger.warning(
        "The tool %r raised. Its call failed, the model reads the last line; this is said once.",
        tool,
        exc_info=(type(error), error, frames[0] if frames else error.__traceback__),
    )
