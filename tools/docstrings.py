"""Read the `Args:` section of Google-style docstrings."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_ENTRY = re.compile(r"(?P<name>\w+)(?:\s*\(.*?\))?:\s*(?P<text>.*)")


def split(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before `Args:` and the description of each parameter."""
    text = inspect.cleandoc(docstring or "")
    section = _SECTION.search(text)
    if section is None:
        return text, {}
    entries: dict[str, str] = {}
    name, depth = "", None
    for line in text[section.end() :].lstrip("\n").splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break  # the next section
        depth = indent if depth is None else depth
        entry = _ENTRY.match(line.strip())
        if entry is not None and indent <= depth:
            name = entry["name"]
            entries[name] = entry["text"]
        elif name and line.strip():
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return text[: section.start()].strip(), entries
