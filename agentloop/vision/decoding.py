"""Read pictures that came from outside: small formats only, sizes checked before anything is decoded, always RGB."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentloop.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 40_000_000
"""A file of 20 KB can hold 169 million pixels; what decoding it needs is known from its header."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What Pillow itself decodes. EPS, PDF and SVG run interpreters."""


def load_image(source: Any, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A picture as RGB, upright, transparency on white; of an animation the first frame.

    `source`: a `PIL.Image.Image`, the bytes of a file, its path, a `data:` URI, or a mapping with `bytes` or `path` as
    the library `datasets` stores images. Raises `UserError` for what is none of these, cannot be decoded or has more
    than `max_pixels` pixels. Nothing is fetched from a network.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, Image.Image):
        _check_size(source, max_pixels, "The picture")
        return _to_rgb(source)
    content, name = _read(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit comes next
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                _check_size(opened, max_pixels, name)
                opened.load()
                return _to_rgb(ImageOps.exif_transpose(opened))
    except UserError:
        raise
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} is too large to decode: {error}. Scale it down.") from error
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is no picture of a known format ({', '.join(FORMATS)}).") from error
    # What Pillow's decoders raise for broken files differs by format.
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError) as error:
        raise UserError(f"{name} cannot be decoded: {error}. Is the file whole?") from error


def _read(source: Any) -> tuple[bytes, str]:
    """Content and a name for messages."""
    if isinstance(source, Mapping):
        if source.get("bytes") is not None:
            return _read(source["bytes"])
        source = source.get("path")
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "The picture"
    if isinstance(source, str) and source.startswith("data:"):
        try:
            return base64.b64decode(source.partition(",")[2], validate=True), "The picture of a data: URI"
        except binascii.Error as error:
            raise UserError(f"The data: URI of a picture is not base64: {error}.") from error
    if isinstance(source, str | Path):
        if "://" in str(source):
            raise UserError(
                f"The picture {source!s} is not fetched: put the file beside the dataset, or its bytes in it."
            )
        try:
            return Path(source).read_bytes(), f"The picture {source}"
        except (OSError, ValueError) as error:
            raise UserError(f"The picture {source} cannot be read: {error}.") from error
    raise UserError(f"A picture is given as a file's path or bytes, not as {type(source).__name__}.")


def _check_size(image: Image.Image, max_pixels: int, name: str) -> None:
    width, height = image.size
    if not 0 < width * height <= max_pixels:
        raise UserError(f"{name} has {width} x {height} pixels; at most {max_pixels:,} are decoded. Scale it down.")


def _to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "RGB":
        return image.copy()
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):  # 16 bits a pixel, which convert() would clip
        return image.convert("I").point(lambda value: value / 256).convert("L").convert("RGB")
    if image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
