"""Parse the displays of a cell from the pipe of `inside.displays`, to which the code can also write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentloop.sandboxes.interface.sandbox import CellError


@dataclass(slots=True, frozen=True)
class Shown:
    """The displays of a cell, its error, and whether any display was left out."""

    displays: tuple[Mapping[str, str | bytes], ...]
    error: CellError | None
    truncated: bool


def parse(data: bytes) -> Shown:
    """Parse everything up to the first invalid frame."""
    displays: list[Mapping[str, str | bytes]] = []
    error: CellError | None = None
    truncated = False
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        try:
            header = json.loads(data[position:end])
            position = end + 1
            if "display" in header:
                bundle, position = _bundle(header["display"], data, position)
                displays.append(bundle)
            elif "error" in header:
                error = _error(header["error"])
            else:
                truncated = True
        except (ValueError, TypeError, KeyError, RecursionError):
            break
    return Shown(tuple(displays), error, truncated)


def _bundle(parts: Any, data: bytes, position: int) -> tuple[dict[str, str | bytes], int]:
    bundle: dict[str, str | bytes] = {}
    for kind, size in parts:
        if not isinstance(kind, str) or not isinstance(size, int) or not 0 <= size <= len(data) - position:
            raise ValueError("a display that does not exist")
        content = data[position : position + size]
        position += size
        is_text = kind.startswith("text/") or kind == "image/svg+xml"
        bundle[kind] = content.decode(errors="replace") if is_text else content
    return bundle, position


def _error(error: Any) -> CellError:
    return CellError(
        name=str(error["name"]), value=str(error["value"]), traceback=tuple(str(line) for line in error["traceback"])
    )
