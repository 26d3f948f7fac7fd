"""Keys of earlier versions: what replaced them, and how the config of an earlier run reads today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {}
"""Old dotted key -> new dotted key."""

REMOVED: Mapping[str, str] = {
    "learner.early_gradients": "it made steps less than one percent faster. Delete the key.",
}
"""Old dotted key -> why it is gone and what to do, such as "it made steps under 1 % faster: delete the line"."""


def advice(key: str, *, renamed: Mapping[str, str] = RENAMED, removed: Mapping[str, str] = REMOVED) -> str | None:
    """Return a sentence on what became of a key, or None if no version had it."""
    known = ".".join(part for part in key.split(".") if not part.isdigit())
    if known in renamed:
        return f"The key {key!r} has a new name: write {renamed[known]!r}."
    if known in removed:
        return f"The key {key!r} was removed: {removed[known].rstrip('.')}."
    return None


def updated(
    flat: Mapping[str, Any], *, renamed: Mapping[str, str] = RENAMED, removed: Mapping[str, str] = REMOVED
) -> dict[str, Any]:
    """Return a flat config (dotted key -> value) of an earlier version under the keys of this one."""
    return {
        _new_name(key, renamed): value
        for key, value in flat.items()
        if not any(key == old or key.startswith(f"{old}.") for old in removed)
    }


def _new_name(key: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
