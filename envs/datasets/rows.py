"""Check raw rows and convert them to the one form that environments, rewards and tools see.

The prompt of a row is either `messages` (a list of chat messages) or `prompt` (such a list, or a string that becomes
one user message). Rewards and tools get all other columns. Rows of verl's datasets work unchanged:
`reward_model.ground_truth` becomes `answer`, `extra_info.index` becomes the id, and the images of `images` replace
`<image>` in the messages.
`agentloop.envs.datasets.images.load_images` decodes them when an episode begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from agentloop.envs.datasets.images import (
    has_empty_parts,
    has_places,
    place_images,
    row_image,
    without_stored,
)
from agentloop.errors import UserError, nearest, shown
from agentloop.types.messages import ROLES, Message
from agentloop.vision.row_image import RowImage


def read_row(
    raw: object, where: str, index: int, folder: Path | None = None, *, needs_prompt: bool = True
) -> dict[str, Any]:
    """Return the row as a dict with `id` (str), `messages` and its own columns. Its images are `RowImage`s.

    `where` ("data.jsonl, line 7") is for error messages. Image paths start at `folder`. Without `needs_prompt` a row
    may lack a prompt, and then has no `messages`. Raises `UserError` for a malformed row.
    """
    if is_dataclass(raw) and not isinstance(raw, type):
        raw = asdict(raw)
    if not isinstance(raw, Mapping):
        raise UserError(f"{where}: a row must be an object with named columns, got {shown(raw)}.")
    _check_answer(raw, where)
    row = {key: value for key, value in raw.items() if not _is_missing(value)}
    if row.get("videos"):
        raise UserError(f"{where}: 'videos' are not supported. Remove the column or the row.")
    folder = folder or Path()
    has_prompt = needs_prompt or "messages" in row or "prompt" in row
    messages = _messages(row, where, folder) if has_prompt else []
    if "images" in row:
        images = _images(row.pop("images"), where, folder)
        row = {key: without_stored(value, images, f"{where}: {key!r}", folder) for key, value in row.items()}
        row["images"] = images
        messages = place_images(messages, images, where) if has_prompt else []
    elif has_empty_parts(messages):
        raise UserError(f"{where}: the messages have empty image parts, and the row has no 'images'.")
    elif "image" in row and has_places(messages):
        raise UserError(
            f"{where}: the messages have a placeholder for an image, and the row has 'image' in place of 'images'. "
            "Rename the column to 'images', with a list of images."
        )
    if has_prompt:
        row["messages"] = messages
    if "answer" not in row and (answer := _nested(row, "reward_model", "ground_truth")) is not None:
        row["answer"] = answer
    own_id = row.get("id", _nested(row, "extra_info", "index"))
    row["id"] = str(index if own_id is None else own_id)
    return row


def _images(column: object, where: str, folder: Path) -> list[RowImage]:
    if not isinstance(column, list | tuple):
        raise UserError(f"{where}: 'images' must be a list of images, got {shown(column)}.")
    return [row_image(source, f"{where}: image {number}", folder) for number, source in enumerate(column, 1)]


def _check_answer(row: Mapping[str, Any], where: str) -> None:
    """Raise `UserError` for NaN and infinity: an answer must not vanish because a table could not hold it."""
    for answer in (row.get("answer"), _nested(row, "reward_model", "ground_truth")):
        if isinstance(answer, float) and not math.isfinite(answer):
            raise UserError(
                f"{where}: the answer is the number {answer}, which no reward can compare. Correct it, write it as "
                "text, set it to null if the task has no answer, or remove the row."
            )


def _messages(row: Mapping[str, Any], where: str, folder: Path) -> list[Message]:
    if "messages" in row and "prompt" in row and row["messages"] != as_messages(row["prompt"]):
        raise UserError(
            f"{where}: 'messages' and 'prompt' are both set and differ, but the model sees only one of them. "
            "Remove the other."
        )
    column = "messages" if "messages" in row else "prompt"
    if column not in row:
        raise UserError(
            f"{where}: the row has neither 'messages' nor 'prompt', only {sorted(row)}."
            f"{_nearest_column(row)} Add one with a list of chat messages or a string."
        )
    value = row[column]
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"{where}: {column!r} is empty. Set it or remove the row.")
        return as_messages(value)
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{where}: {column!r} must be a string or a list of messages, got {shown(value)}.")
    return [
        _message(item, f"{where}: message {position} of {column!r}", folder) for position, item in enumerate(value, 1)
    ]


def as_messages(value: Any, role: str = "user") -> Any:
    """Return a string as the list of one message, and any other value unchanged."""
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _message(item: object, where: str, folder: Path) -> Message:
    if not isinstance(item, Mapping) or "role" not in item:
        raise UserError(f"{where} must be an object with 'role' and 'content', got {shown(item)}.")
    role, content = item["role"], item.get("content")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise UserError(f"{where} has the role {role!r}.{nearest(str(role), ROLES)} Known: {known}.")
    if content is None and item.get("tool_calls"):
        content = ""
    if not isinstance(content, str | list):
        raise UserError(f"{where} must have a string or a list of parts as 'content', got {shown(content)}.")
    if isinstance(content, list):
        content = [_part(part, f"{where}: part {number}", folder) for number, part in enumerate(content, 1)]
    # Parquet adds the columns of any message to every message. Remove null ones, which templates must not see.
    message = {key: value for key, value in item.items() if value is not None}
    return {**message, "content": content}  # type: ignore[typeddict-item]


def _part(item: object, where: str, folder: Path) -> Any:
    part = {key: value for key, value in item.items() if value is not None} if isinstance(item, Mapping) else {}
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return part
    if part.get("type") == "image":
        source = part.get("image", part.get("path"))
        return {"type": "image"} if source is None else {"type": "image", "image": row_image(source, where, folder)}
    raise UserError(f"{where} must have the 'type' text, with 'text', or image, got {shown(item)}.")


def _nested(row: Mapping[str, Any], column: str, key: str) -> Any:
    value = row.get(column)
    return value.get(key) if isinstance(value, Mapping) else None


def _is_missing(value: object) -> bool:
    """Return whether a value is null: None, or NaN, to which table libraries convert it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _nearest_column(row: Mapping[str, Any]) -> str:
    for wanted in ("messages", "prompt"):
        if close := nearest(wanted, map(str, row)):
            return close.replace("Did you mean", f"Should {wanted!r} be")
    return ""
