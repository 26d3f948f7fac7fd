"""Images of dataset rows, stored encoded and decoded when an episode begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentloop.errors import UserError
from agentloop.types.messages import Message
from agentloop.vision.row_image import RowImage

PLACEHOLDER = "<image>"
_STORED_KEYS = {"bytes", "path"}
"""Keys with which the library `datasets` stores an image."""


def row_image(source: Any, where: str, folder: Path) -> RowImage:
    """Return an image of a row. Relative paths start at `folder`.

    `source` is a path, a `data:` URI, bytes, a `PIL.Image.Image`, or a mapping with `bytes`, `path` or `image`. Raises
    `UserError` for a missing file.
    """
    if isinstance(source, RowImage):
        return source
    if isinstance(source, Mapping):
        found = next((source[key] for key in ("bytes", "image", "path") if source.get(key) is not None), None)
        if found is None:
            raise UserError(f"{where} has neither 'bytes' nor 'path', only {sorted(source)}.")
        return row_image(found, where, folder)
    if isinstance(source, str) and not source.startswith("data:"):
        path = folder / source.removeprefix("file://")
        if "://" not in source.removeprefix("file://") and not path.is_file():
            raise UserError(f"{where}: there is no file {path}. Relative paths start at the folder of the dataset.")
        return RowImage(str(path) if path.is_file() else source, where)
    return RowImage(source, where)


def place_images(messages: Sequence[Message], images: Sequence[RowImage], where: str) -> list[Message]:
    """Replace every `<image>` in text and every empty image part with an image part that has the next of `images`.

    Raises `UserError` if their numbers differ.
    """
    left = iter(images)
    wanted = sum(_places(message) for message in messages)
    if wanted != len(images):
        raise UserError(
            f"{where}: the messages have {wanted} placeholders for images ('{PLACEHOLDER}' or image parts), and "
            f"'images' has {len(images)}. Each image needs one placeholder."
        )
    return [_placed(message, left) for message in messages]


def load_images(messages: Sequence[Message]) -> list[Message]:
    """Decode the `RowImage`s of messages. Raises `UserError`."""
    return [
        _with_parts(message, map(_loaded, message["content"])) if _has_row_images(message) else message
        for message in messages
    ]


def has_empty_parts(messages: Sequence[Message]) -> bool:
    """Return whether an image part has no image yet."""
    parts = (part for message in messages if not isinstance(message["content"], str) for part in message["content"])
    return any(part["type"] == "image" and "image" not in part for part in parts)


def has_places(messages: Sequence[Message]) -> bool:
    """Return whether any message has a `<image>` in its text or an empty image part."""
    return any(map(_places, messages))


def has_row_images(messages: Sequence[Message]) -> bool:
    """Return whether any message has a `RowImage`."""
    return any(map(_has_row_images, messages))


def without_stored(value: Any, images: Sequence[RowImage], where: str, folder: Path) -> Any:
    """Replace stored images in a column with `RowImage`s, and reuse those of `images` with the same source."""
    if isinstance(value, Mapping):
        if set(value) == _STORED_KEYS and isinstance(value["bytes"], bytes):
            own = row_image(value, where, folder)
            return next((image for image in images if image.source == own.source), own)
        return {key: without_stored(item, images, where, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [without_stored(item, images, where, folder) for item in value]
    return value


def _places(message: Message) -> int:
    content = message.get("content", "")
    if isinstance(content, str):
        return content.count(PLACEHOLDER)
    return sum(part["text"].count(PLACEHOLDER) if part["type"] == "text" else "image" not in part for part in content)


def _placed(message: Message, images: Iterator[RowImage]) -> Message:
    content = message.get("content", "")
    if not _places(message):
        return message
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    placed: list[Any] = []
    for part in parts:
        if part["type"] == "text":
            for text in re.split(f"({PLACEHOLDER})", part["text"]):
                if text:
                    placed.append(_image_part(next(images)) if text == PLACEHOLDER else {"type": "text", "text": text})
        else:
            placed.append(part if "image" in part else _image_part(next(images)))
    return _with_parts(message, placed)


def _image_part(image: RowImage) -> dict[str, Any]:
    return {"type": "image", "image": image}


def _has_row_images(message: Message) -> bool:
    content = message.get("content", "")
    return not isinstance(content, str) and any(isinstance(part.get("image"), RowImage) for part in content)


def _loaded(part: Any) -> Any:
    return _image_part(part["image"].load()) if isinstance(part.get("image"), RowImage) else part


def _with_parts(message: Message, parts: Any) -> Message:
    return {**message, "content": list(parts)}
