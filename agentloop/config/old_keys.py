"""Keys of earlier versions: what replaced them, and how the config of an earlier run reads today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

RENAMED: Mapping[str, str] = {}
"""Old dotted key -> new dotted key."""

REMOVED: Mapping[str, str] = {
    "learner.early_gradients": "it made steps less than one percent faster. Delete the key.",
    "learner.model": "the learner trains the model of the run. Delete the key, and set model.",
    "learner.recording": "the profiler records the learner. Delete the key, and set profiler.",
    "learner.seed": "it is that of the run. Delete the key, and set run.seed.",
    "learner.temperature": "it is that of the engine. Delete the key, and set sampling.temperature.",
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


def with_defaults(annotation: Any, stored: Any) -> Any:
    """Return the plain data of a config of an earlier version with the defaults of keys that are newer than it.

    `annotation` is the config's class, or the type of the value `stored` in it.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(stored, Mapping):
        filled = dict(stored)
        for name, field in annotation.model_fields.items():
            if name in stored:
                filled[name] = with_defaults(field.annotation, stored[name])
            elif not field.is_required():
                filled[name] = to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
        return filled
    if isinstance(annotation, type) and is_dataclass(annotation) and isinstance(stored, Mapping):
        return {field.name: field.default for field in fields(annotation)} | dict(stored)
    in_container = get_origin(annotation) in (list, tuple)
    for argument in get_args(annotation) if get_origin(annotation) is not dict else ():
        if in_container and isinstance(stored, list):
            stored = [with_defaults(argument, item) for item in stored]
        elif not in_container:  # Annotated, or a union
            stored = with_defaults(argument, stored)
    return stored


def _new_name(key: str, renamed: Mapping[str, str]) -> str:
    for old, new in renamed.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
