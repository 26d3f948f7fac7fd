"""Say in the log what only whoever wrote a tool can mend: once, since every episode may come by there."""

from __future__ import annotations

import logging

from agentloop.errors import user_frames

_logger = logging.getLogger(__name__)

_told: set[tuple[object, ...]] = set()

_LONG_SECONDS = 0.5
"""For which a tool may keep the event loop of a rollout worker before something is said; machines are busy."""


def tell_once(tool: str, error: BaseException) -> None:
    """The model reads one line; whoever wrote the tool wants the traceback."""
    frames = user_frames(error)
    file, line = (frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno) if frames else ("", 0)
    if _is_new(tool, type(error), file, line):
        _logger.warning(
            "The tool %r raised. Its call failed, the model reads the last line; this is said once.",
            tool,
            exc_info=(type(error), error, frames[0] if frames else error.__traceback__),
        )


def tell_blocking(tool: str, seconds: float) -> None:
    """It ran for so long without awaiting anything."""
    if seconds > _LONG_SECONDS and _is_new(tool, "blocking"):
        _logger.warning(
            "The tool %r did not await anything for %.1f s, in which no other episode of the worker went on. Await "
            "what waits, or write its methods without async: they run in threads then. This is said once.",
            tool,
            seconds,
        )


def _is_new(*what: object) -> bool:
    is_new = what not in _told
    _told.add(what)
    return is_new
