"""What the model reads of code that ran: its output, errors and pictures, and how it ended where that is not plain.

A traceback is cut from the front, so that its last frames and the exception stay: these are what can be learned from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentloop.errors import UserError
from agentloop.sandboxes import CellResult, ExecutionResult
from agentloop.types.messages import Content, ImagePart, TextPart
from agentloop.vision.decoding import load_image

if TYPE_CHECKING:
    from PIL import Image

_MAX_LINE = 1000
"""Characters of a line of a traceback, whose last one may quote anything."""
_MAX_PIXELS = 16_000_000
"""Of a picture that code shows: more than any model is shown of one, and decoded fast."""
_PICTURES = ("image/png", "image/jpeg")
_CUT = "[output cut]"


def of_execution(result: ExecutionResult, max_seconds: float, max_traceback_lines: int) -> str:
    """stdout, the end of stderr, and how it ended. `max_seconds`: what it was allowed."""
    errors = _last(result.stderr.rstrip("\n").splitlines(), max_traceback_lines)
    ending = _ending(result.timed_out, result.oom, max_seconds)
    if not ending and result.signal is not None:
        ending = f"[killed by signal {result.signal}]"
    elif not ending and not result.ok and not errors:
        ending = f"[exit code {result.return_code}]"
    cut = _CUT if result.output_truncated else ""
    return _joined([result.stdout.rstrip("\n"), *errors, ending, cut])


async def of_cell(
    result: CellResult, max_seconds: float, *, max_output_bytes: int, max_traceback_lines: int, max_images: int
) -> Content:
    """stdout, the end of stderr, what was shown, the end of the traceback, and how it ended."""
    errors = _last(result.stderr.rstrip("\n").splitlines(), max_traceback_lines)
    items: list[str | Image.Image] = [result.stdout.rstrip("\n"), *errors]
    shown, truncated = await _displays(result, max_output_bytes, max_images)
    items += shown
    # The interrupt at the end of its time is no error of the code.
    if result.error is not None and not (result.timed_out and result.error.name == "KeyboardInterrupt"):
        lines = [line for entry in result.error.traceback for line in entry.splitlines()]
        items += _last(lines, max_traceback_lines)
    items.append(_ending(result.timed_out, result.oom, max_seconds))
    items.append(_CUT if result.output_truncated or truncated else "")
    if result.session_ended:
        how = "Python exited" if result.session_ended == "exited" else "Python was killed"
        items.append(f"[{how}: variables and files are lost, and the next call starts afresh]")
    return _content(items)


async def _displays(result: CellResult, max_bytes: int, max_images: int) -> tuple[list[str | Image.Image], bool]:
    """What the cell shows, pictures as such up to `max_images`, and whether text was cut."""
    items: list[str | Image.Image] = []
    images, left = 0, max_bytes
    for display in result.displays:
        picture = next((display[kind] for kind in _PICTURES if kind in display), None)
        if isinstance(picture, bytes) and images < max_images:
            items.append(await _decoded(picture))
            images += 1
        elif picture is not None:
            items.append("[a picture, not shown]")
        elif isinstance(text := display.get("text/plain"), str):
            kept = text.encode(errors="replace")[: max(left, 0)].decode(errors="ignore")
            left -= len(text.encode(errors="replace"))
            items.append(kept)
    return items, left < 0


async def _decoded(picture: bytes) -> str | Image.Image:
    try:
        return await asyncio.to_thread(load_image, picture, max_pixels=_MAX_PIXELS)
    except UserError as error:
        return f"[{error}]"


def _ending(timed_out: bool, oom: bool, max_seconds: float) -> str:
    return f"[timed out after {max_seconds:.3g} s]" if timed_out else "[out of memory]" if oom else ""


def _last(lines: Sequence[str], number: int) -> list[str]:
    short = [line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + "..." for line in lines[-number:]]
    return ["...", *short] if len(lines) > number else short


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part) or "[no output]"


def _content(items: Sequence[str | Image.Image]) -> Content:
    """Plain text, or parts where there are pictures."""
    parts: list[TextPart | ImagePart] = []
    texts: list[str] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            continue
        if any(texts):
            parts.append({"type": "text", "text": _joined(texts)})
        parts.append({"type": "image", "image": item})
        texts = []
    if not parts:
        return _joined(texts)
    if any(texts):
        parts.append({"type": "text", "text": _joined(texts)})
    return parts
