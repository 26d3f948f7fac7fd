"""Log problems that only the author of a tool can fix, once each, because every episode may run into them."""

from __future__ import annotations

import logging

from agentloop.errors import user_frames

_logger = logging.getLogger(__name__)

_told: set[tuple[object, ...]] = set()

_LONG_SECONDS = 0.5
"""Seconds that a tool may block the event loop of a rollout worker without a warning."""


def tell_once(tool: str, error: BaseException) -> None:
    """Log the traceback of a tool; the model sees only its last line."""
    frames = user_frames(error)
    file, line = (frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno) if frames else ("", 0)
    if _is_new(tool, type(error), file, line):
        _logger.warning(
            "The tool %r raised an error, so its call failed; the model sees the last line. This is logged once.",
            tool,
            exc_info=(type(error), error, frames[0] if frames else error.__traceback__),
        )


def tell_blocking(tool: str, seconds: float) -> None:
    """Log that a tool ran for `seconds` without awaiting anything."""
    if seconds > _LONG_SECONDS and _is_new(tool, "blocking"):
        _logger.warning(
            "The tool %r blocked all episodes of its worker for %.1f s. Await operations that wait, or write its "
            "methods without async, so that they run in threads. This is logged once.",
            tool,
            seconds,
        )


def _is_new(*what: object) -> bool:
    is_new = what not in _told
    _told.add(what)
    return is_new


def warn_once(message: str) -> None:
    """Log a warning, if it is new."""
    if _is_new(message):
        _logger.warning("%s This is logged once.", message)


def pass_on(warning: str) -> None:
    """Log a warning of another process, unless one of them has logged the same."""
    if _is_new(warning):
        _logger.warning("%s", warning)
