"""Calls of DeepSeek up to V3.1: JSON between special tokens.

    V3, R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
            ```json
            {...}
            ```<｜tool▁call▁end｜>
    V3.1:   <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>

All calls of a turn are between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>.
"""

from __future__ import annotations

import re

from agentloop.rendering.formats.base import CallFormat
from agentloop.rendering.formats.marked import Marked, marked

_OPEN, _SEPARATOR, _CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def _format(name: str, signs: tuple[str, ...], header: str, close: str, example: str) -> CallFormat:
    return marked(
        name, signs, Marked(_OPEN, re.compile(header), close, _SECTION, f"{_SECTION[0]}{_OPEN}{example}{_SECTION[1]}")
    )


DEEPSEEK_R1 = _format(
    "deepseek_r1",
    (_OPEN, "```json"),
    rf"\w*{re.escape(_SEPARATOR)}(?P<name>[^\n<>]+)\n```json\n",
    "```" + _CLOSE,
    f"function{_SEPARATOR}TOOL\n```json\n{{...}}\n```{_CLOSE}",
)
DEEPSEEK_V3_1 = _format(
    "deepseek_v3_1",
    (_OPEN, _SEPARATOR),
    rf"(?P<name>[^\n<>]+?){re.escape(_SEPARATOR)}",
    _CLOSE,
    f"TOOL{_SEPARATOR}{{...}}{_CLOSE}",
)
