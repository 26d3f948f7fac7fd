"""Map keys of earlier versions to those of today, and update the config of an earlier run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

RENAMED: Mapping[str, str] = {}
"""Old dotted key -> new dotted key."""

REMOVED: Mapping[str, str] = {
    "learner.chat_template": "the template of the run is saved. Delete the key, and set rendering.chat_template.",
    "learner.early_gradients": "it made steps less than one percent faster. Delete the key.",
    "learner.model": "the learner trains the model of the run. Delete the key, and set model.",
    "learner.recording": "the profiler records the learner. Delete the key, and set profiler.",
    "learner.seed": "the seed of the run is used. Delete the key, and set run.seed.",
    "learner.temperature": "the engine's temperature is used. Delete the key, and set sampling.temperature.",
}
"""Old dotted key -> why it was removed and what to do."""


def advice(key: str, *, renamed: Mapping[str, str] = RENAMED, removed: Mapping[str, str] = REMOVED) -> str | None:
    """Return a sentence about a renamed or removed key, or None if no version had the key."""
    known = ".".join(part for part in key.split(".") if not part.isdigit())
    if known in renamed:
        return f"The key {key!r} has a new name: write {renamed[known]!r}."
    if known in removed:
        return f"The key {key!r} was removed: {removed[known].rstrip('.')}."
    return None


def updated(
    flat: Mapping[str, Any], *, renamed: Mapping[str, str] = RENAMED, removed: Mapping[str, str] = REMOVED
) -> dict[str, Any]:
    """Return a flat config (dotted key -> value) of an earlier version with today's keys."""
    return {
        _new_name(key, renamed): value
        for key, value in flat.items()
        if not any(key == old or key.startswith(f"{old}.") for old in removed)
    }


def with_defaults(annotation: Any, stored: Any) -> Any:
    """Return the plain data of an earlier version's config, completed with the defaults of newer keys.

    `annotation` is the class of the config, or the type of the value `stored` in it.
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
