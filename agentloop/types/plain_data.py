"""Convert Python values, such as messages and dataset rows, to JSON values and back.

A dictionary whose only key begins with `$` stands for a value that JSON does not have: `{"$image": 0}` is an image of
the `ImageTable`. The others are `{"$bytes": base64}`, `{"$float": "nan"}`, `{"$tuple": [...]}`, and `{"$dict": ...}`
for a dictionary that looks like one of these. numpy values become lists and numbers. Any other value becomes
`str(value)` and is read back as text; that of a set is sorted, because its order differs in each process.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np


class ImageTable:
    """Numbers images by identity and encodes them as PNG, which is lossless."""

    def __init__(self) -> None:
        self._images: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        """References to the numbered objects, so that their `id()` stays unique."""

    def number(self, image: Any, as_pil: Callable[[], Any] | None = None) -> int:
        """Return the number of an image. `as_pil` converts an image that is not a `PIL.Image.Image`."""
        number = self._numbers.setdefault(id(image), len(self._images))
        if number == len(self._images):
            self._images.append(image if as_pil is None else as_pil())
            self._held.append(image)
        return number

    def __getitem__(self, number: int) -> Any:
        return self._images[number]

    def pngs(self) -> Iterator[bytes]:
        for image in self._images:
            buffer = io.BytesIO()
            # PNG has no CMYK, YCbCr, HSV, LAB or float pixels.
            shown = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I") else image.convert("RGB")
            shown.save(buffer, "PNG")
            yield buffer.getvalue()

    def as_base64(self) -> list[str]:
        return [base64.b64encode(png).decode() for png in self.pngs()]

    @classmethod
    def from_pngs(cls, pngs: Iterable[bytes]) -> ImageTable:
        from PIL import Image

        table = cls()
        for png in pngs:
            with Image.open(io.BytesIO(png)) as image:
                table.number(image.copy())
        return table

    @classmethod
    def from_base64(cls, pngs: Iterable[str]) -> ImageTable:
        return cls.from_pngs(base64.b64decode(png) for png in pngs)


def to_plain(value: Any, images: ImageTable) -> Any:
    """Return the JSON form of a value."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, str):  # StrEnum and other subclasses lose their class
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        plain = {str(key): to_plain(item, images) for key, item in value.items()}
        return {"$dict": plain} if len(plain) == 1 and next(iter(plain)).startswith("$") else plain
    if isinstance(value, list):
        return [to_plain(item, images) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item, images) for item in value]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist(), images)
    if _is_image(value):
        return {"$image": images.number(value)}
    if isinstance(value, set | frozenset) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return str(value)


def from_plain(value: Any, images: ImageTable) -> Any:
    """Return the value that `to_plain` converted to this JSON form."""
    if isinstance(value, list):
        return [from_plain(item, images) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if key == "$image":
            return images[item]
        if key == "$bytes":
            return base64.b64decode(item)
        if key == "$float":
            return float(item)
        if key == "$tuple":
            return tuple(from_plain(part, images) for part in item)
        if key == "$dict":
            value = item
    return {key: from_plain(item, images) for key, item in value.items()}


def _is_image(value: Any) -> bool:
    """Return whether a value is a PIL image, without importing PIL."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys, as on the command line, with their values."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
