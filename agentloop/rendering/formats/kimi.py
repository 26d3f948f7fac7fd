"""Calls of Kimi K2: the id of a call contains the name of its function, and results refer to this id.

<|tool_calls_section_begin|>
<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
<|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from agentloop.rendering.formats.marked import Marked, marked

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")

KIMI = marked(
    "kimi",
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    Marked(
        "<|tool_call_begin|>",
        re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
        "<|tool_call_end|>",
        _SECTION,
        f"{_SECTION[0]}<|tool_call_begin|>functions.TOOL:0<|tool_call_argument_begin|>{{...}}<|tool_call_end|>"
        f"{_SECTION[1]}",
    ),
)
