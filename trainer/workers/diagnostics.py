"""Describe the activity of a process, for messages about a hanging process."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import Counter
from types import FrameType
from typing import Any

_OWN = ("/asyncio/", "/concurrent/", "/threading.py", "/selectors.py")
_SHOWN = 4


def waiting_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the places at which the tasks of a running loop wait, most frequent first. Any thread may call it."""
    places = Counter(_place(task.get_coro()) for task in asyncio.all_tasks(loop) if not task.done())
    return "; ".join(f"{count} in {place}" for place, count in places.most_common(_SHOWN)) or "no task"


def running_code(thread: int) -> str:
    """Return the innermost frames of a thread, innermost last."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a thread that has ended"
    frames = [entry for entry in traceback.extract_stack(frame) if not any(own in entry.filename for own in _OWN)]
    return " > ".join(f"{_file(entry.filename)}:{entry.lineno} {entry.name}" for entry in frames[-_SHOWN:])


def _place(coroutine: Any) -> str:
    """Return the innermost coroutine, outside asyncio, that a task awaits."""
    found = "?"
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None and not any(own in frame.f_code.co_filename for own in _OWN):
            found = f"{frame.f_code.co_qualname} ({_file(frame.f_code.co_filename)}:{frame.f_lineno})"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return found


def _file(path: str) -> str:
    return "/".join(path.split("/")[-2:])
