"""Format the result of executed code for the model: output, errors, images, and an abnormal end.

A long traceback keeps only its last frames and the exception, which explain the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentloop.errors import UserError
from agentloop.process.threads import DECODING
from agentloop.sandboxes import CellResult, ExecutionResult
from agentloop.types.messages import Content, ImagePart, TextPart
from agentloop.vision.decoding import load_image

if TYPE_CHECKING:
    from PIL import Image

_MAX_LINE = 1000
"""Maximum characters of a traceback line. The last line may quote arbitrary values."""
_MAX_PIXELS = 16_000_000
"""Maximum pixels of an image that code displays: more than any model sees, and still fast to decode."""
_IMAGE_TYPES = ("image/png", "image/jpeg")
_CUT = "[output cut]"


def of_execution(result: ExecutionResult, max_seconds: float, max_traceback_lines: int) -> str:
    """Format stdout, the end of stderr, and how the process ended. `max_seconds` was its time limit."""
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
    """Format a notebook cell: stdout, the end of stderr, displays, the end of the traceback, and how it ended."""
    errors = _last(result.stderr.rstrip("\n").splitlines(), max_traceback_lines)
    items: list[str | Image.Image] = [result.stdout.rstrip("\n"), *errors]
    shown, truncated = await _displays(result, max_output_bytes, max_images)
    items += shown
    # A KeyboardInterrupt at the time limit comes from the sandbox, not from the code.
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
    """Return texts and at most `max_images` images that the cell displayed, and whether text was cut."""
    items: list[str | Image.Image] = []
    images, left = 0, max_bytes
    for display in result.displays:
        image = next((display[kind] for kind in _IMAGE_TYPES if kind in display), None)
        if isinstance(image, bytes) and images < max_images:
            items.append(await _decoded(image))
            images += 1
        elif image is not None:
            items.append("[an image, not shown]")
        elif isinstance(text := display.get("text/plain"), str):
            kept = text.encode(errors="replace")[: max(left, 0)].decode(errors="ignore")
            left -= len(text.encode(errors="replace"))
            items.append(kept)
    return items, left < 0


async def _decoded(image: bytes) -> str | Image.Image:
    try:
        return await DECODING.run(load_image, image, max_pixels=_MAX_PIXELS)
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
    """Return a plain string, or a list of parts if there are images."""
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
