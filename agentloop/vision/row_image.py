"""`RowImage`: an image of a dataset row, stored encoded and decoded when an episode needs it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentloop.errors import UserError
from agentloop.vision.decoding import load_image

if TYPE_CHECKING:
    from PIL import Image


class RowImage:
    """Image as its row stores it: a path, the bytes of a file, or a decoded image.

    Rows stay small in memory, and a written trajectory refers to the image instead of containing it.
    """

    __slots__ = ("_loaded", "_lock", "source", "where")

    def __init__(self, source: Any, where: str) -> None:
        """Keep the source. `where` ("data.parquet, row 3: image 1") names it in errors and files."""
        self.where = where
        self.source = source
        self._lock = threading.Lock()
        self._loaded: weakref.ref[Image.Image] | None = None

    def load(self) -> Image.Image:
        """Decode the image to RGB. Raises `UserError` with the location of the row.

        This takes milliseconds, so do not call it on the event loop. The episodes of a group share the result as long
        as one of them uses it.
        """
        with self._lock:
            image = self._loaded() if self._loaded is not None else None
            if image is None:
                try:
                    image = load_image(self.source)
                except UserError as error:
                    raise UserError(f"{self.where}: {error}") from error
                self._loaded = weakref.ref(image)
            return image

    def __repr__(self) -> str:
        return f"<{self.where}>"

    def __reduce__(self) -> tuple[type[RowImage], tuple[Any, str]]:
        return RowImage, (self.source, self.where)


def has_row_image(value: Any) -> bool:
    """Return whether a value of a row has a `RowImage`."""
    if isinstance(value, Mapping):
        return any(map(has_row_image, value.values()))
    return isinstance(value, RowImage) or (isinstance(value, list) and any(map(has_row_image, value)))


def with_loaded(value: Any) -> Any:
    """Replace each `RowImage` in a value of a row with the decoded image. Raises `UserError`."""
    if isinstance(value, Mapping):
        return {key: with_loaded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_loaded(item) for item in value]
    return value.load() if isinstance(value, RowImage) else value
