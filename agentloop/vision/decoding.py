"""Decode untrusted images to RGB: only formats that Pillow decodes itself, and only after a size check."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 40_000_000
"""Maximum pixels, checked in the header before decoding: a file of 20 KB can contain 169 million pixels."""
MAX_REQUEST_PIXELS = 100_000_000
"""Maximum pixels of all images of one request: 48 screenshots of 1920 x 1080, 300 MB when decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow decodes itself. EPS, PDF and SVG would run interpreters."""

_PNG = b"\x89PNG\r\n\x1a\n"


def load_image(source: Any, *, max_pixels: int = MAX_PIXELS, left: int | None = None) -> Image.Image:
    """Load an image as RGB, upright, with transparency on white. Only the first frame of an animation is loaded.

    `source` is a `PIL.Image.Image`, the bytes of a file, its path, a `data:` URI, or a mapping with `bytes` or `path`,
    the form of the library `datasets`. Raises `UserError` for other sources, for images that cannot be decoded, and for
    images with more than `max_pixels` pixels or than the `left` pixels of an `ImageBudget`. It never uses the network.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, Image.Image):
        _check_size(source, max_pixels, left, "The image")
        return _to_rgb(source)
    content, name = _read(source)
    if content.startswith(_PNG):
        _check_png(content, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is checked below
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                _check_size(opened, max_pixels, left, name)
                opened.load()
                return _to_rgb(ImageOps.exif_transpose(opened))
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} is too large to decode: {error}. Scale it down.") from error
    except UnidentifiedImageError as error:
        if kind := _format_of(content):
            raise UserError(f"{name} is a damaged {kind} file. Write it again.") from error
        raise UserError(f"{name} has an unknown format: use one of {', '.join(FORMATS)}.") from error
    # Pillow's decoders raise different errors for broken files.
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError) as error:
        raise UserError(f"{name} cannot be decoded: {error}. Check that the file is complete.") from error


class ImageBudget:
    """Loads the images of one request, up to a total number of pixels. Each is checked before it is decoded."""

    def __init__(self, max_pixels: int = MAX_REQUEST_PIXELS) -> None:
        self._max_pixels = self._left = max_pixels

    def load(self, source: Any) -> Image.Image:
        """Load an image as `load_image` does. Raises `UserError` also if the images together are too large."""
        image = load_image(source, max_pixels=MAX_PIXELS, left=self._left)
        self._left -= image.width * image.height
        return image


def _read(source: Any) -> tuple[bytes, str]:
    """Return the content, and a name for error messages."""
    if isinstance(source, Mapping):
        if source.get("bytes") is not None:
            return _read(source["bytes"])
        source = source.get("path")
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "The image"
    if isinstance(source, str) and source.startswith("data:"):
        try:
            return base64.b64decode(source.partition(",")[2], validate=True), "The image of a data: URI"
        except binascii.Error as error:
            raise UserError(f"The data: URI of an image is not base64: {error}.") from error
    if isinstance(source, str | Path):
        if "://" in str(source):
            raise UserError(
                f"The image {source!s} is a URL, which is not fetched: store the file or its bytes in the dataset."
            )
        try:
            return Path(source).read_bytes(), f"The image {source}"
        except (OSError, ValueError) as error:
            raise UserError(f"The image {source} cannot be read: {error}.") from error
    raise UserError(f"An image must be the path or the bytes of a file, got {type(source).__name__}.")


def _check_png(png: bytes, name: str) -> None:
    """Check the checksums of critical chunks (https://www.w3.org/TR/png-3/#5Chunk-layout); Pillow skips some.

    Raises `UserError`. A file that ends early is left to Pillow.
    """
    position = len(_PNG)
    while position + 12 <= len(png):
        end = position + 8 + int.from_bytes(png[position : position + 4], "big")
        kind = png[position + 4 : position + 8]
        is_critical = kind[:1].isupper() and end + 4 <= len(png)
        if is_critical and zlib.crc32(png[position + 4 : end]) != int.from_bytes(png[end : end + 4], "big"):
            raise UserError(
                f"{name} is a PNG with a broken checksum: its chunk {kind.decode('latin-1')} is damaged. "
                "Write the file again."
            )
        position = end + 4


def _format_of(content: bytes) -> str | None:
    """Return the format that the first bytes of a file belong to; None if no decoder accepts them."""
    from PIL import Image

    accepts = ((kind, Image.OPEN[kind][1]) for kind in FORMATS)
    return next((kind for kind, accept in accepts if accept is not None and accept(content[:16]) is True), None)


def _check_size(image: Image.Image, max_pixels: int, left: int | None, name: str) -> None:
    width, height = image.size
    if left is not None and width * height > left:
        raise UserError(
            f"{name} has {width} x {height} pixels, but only {left:,} are left for all images together: scale them "
            "down."
        )
    if not 0 < width * height <= max_pixels:
        raise UserError(f"{name} has {width} x {height} pixels, but the limit is {max_pixels:,}. Scale it down.")


def _to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "RGB":
        return image.copy()
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # convert() would clip 16 bits per pixel
        return image.convert("I").point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
