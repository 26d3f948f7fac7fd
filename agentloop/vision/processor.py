"""`ImageProcessor`: counts the tokens of an image, scales the image, and places it in the token stream."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentloop.errors import UserError
from agentloop.types.image import PixelFormat, PlacedImage, SeenImage
from agentloop.vision.seen_size import SmartResize

if TYPE_CHECKING:
    from PIL import Image

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""`model_type`s of the supported vision models."""


class ImageProcessor:
    """Image processor of one model, created by `image_processor_for`. All episodes may share it.

    Pillow scales the images, as in the processor of transformers.
    """

    def __init__(
        self, pixel_format: PixelFormat, sizes: SmartResize, *, image_token_id: int, resample: int | None = None
    ) -> None:
        """Set the pixel format and sizes. `resample` is a filter of Pillow; None: bicubic."""
        assert sizes.factor == pixel_format.factor
        self.format = pixel_format
        self.sizes = sizes
        self.image_token_id = image_token_id
        self._resample = resample
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[weakref.ref[Any], weakref.ref[SeenImage]]] = {}

    def num_tokens(self, image: Image.Image) -> int:
        """Return the number of tokens of an image. Raises `UserError` if the model cannot process it."""
        width, height = self.sizes(*_size(image))
        return width * height // self.format.factor**2

    def see(self, image: Image.Image) -> SeenImage:
        """Scale an image for the model. Raises `UserError` if the model cannot process it.

        This takes milliseconds, so do not call it on the event loop. The episodes of a group share the result while one
        of their trajectories references it.
        """
        with self._lock:
            source, seen = self._seen.get(id(image), (None, None))
            known = seen() if seen is not None and source is not None and source() is image else None
        if known is not None:
            return known
        new = self._scaled(image)
        with self._lock:
            self._seen = {key: pair for key, pair in self._seen.items() if pair[0]() and pair[1]()}
            self._seen[id(image)] = weakref.ref(image), weakref.ref(new)
        return new

    def _scaled(self, image: Image.Image) -> SeenImage:
        from PIL import Image

        target = self.sizes(*_size(image))
        shown = image.convert("RGB")
        if shown.size != target:
            shown = shown.resize(target, Image.Resampling.BICUBIC if self._resample is None else self._resample)
        return SeenImage(np.array(shown), self.format)

    def expand(self, ids: Sequence[int], counts: Sequence[int]) -> list[int]:
        """Replace the image token of each image in `ids` by `counts` copies of it.

        Raises `UserError` if the numbers of image tokens and images differ.
        """
        token = self.image_token_id
        if (found := sum(1 for one in ids if one == token)) != len(counts):
            raise UserError(
                f"The chat template shows {found} images, but the messages have {len(counts)}. Use a template that "
                "writes one image token for each image part, and remove that token from system messages and templates."
            )
        left = iter(counts)
        expanded: list[int] = []
        for one in ids:
            expanded += [one] * next(left) if one == token else (one,)
        return expanded

    def place(self, ids: Sequence[int], images: Sequence[SeenImage], offset: int = 0) -> list[PlacedImage]:
        """Locate images in ids that `expand` returned. `offset` is the position of the first id in the stream."""
        starts = np.flatnonzero(np.asarray(ids, np.int64) == self.image_token_id)
        counts = [image.num_tokens for image in images]
        assert len(starts) == sum(counts), "image tokens must match the images"
        firsts = np.cumsum([0, *counts])[:-1]
        return [PlacedImage(image, offset + int(starts[first])) for image, first in zip(images, firsts, strict=True)]


def image_processor_for(
    model: str | Path, *, min_pixels: int | None = None, max_pixels: int | None = None
) -> ImageProcessor | None:
    """Create the processor of a model (folder or hub name); None for a model without a vision tower.

    `min_pixels` and `max_pixels` override the model's own limits. Raises `UserError` for a vision model that is not
    among `FAMILIES`, and if its processor settings are missing.
    """
    from transformers import PreTrainedConfig

    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        return None
    settings, _ = PreTrainedConfig.get_config_dict(str(model))
    if not isinstance(settings.get("vision_config"), dict):
        return None
    family = settings.get("model_type")
    if family not in FAMILIES:
        raise UserError(
            f"{model} is a vision model of the unsupported type {family!r}. Supported: {', '.join(FAMILIES)}."
        )
    return _from_transformers(_load(model), int(settings["image_token_id"]), min_pixels, max_pixels)


def _load(model: str | Path) -> Any:
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(str(model), backend="pil")
    # The type of error for a broken or missing file depends on the file and the version of transformers.
    except Exception as error:
        raise UserError(
            f"{model} is a vision model, but its image processor cannot be loaded: {type(error).__name__}: {error}. "
            "Copy preprocessor_config.json from the model that it is based on."
        ) from error


def _from_transformers(
    loaded: Any, image_token_id: int, min_pixels: int | None, max_pixels: int | None
) -> ImageProcessor:
    pixel_format = PixelFormat(
        patch_size=loaded.patch_size,
        merge_size=loaded.merge_size,
        temporal_patch_size=loaded.temporal_patch_size,
        scale=float(loaded.rescale_factor),
        mean=tuple(loaded.image_mean),
        std=tuple(loaded.image_std),
    )
    low = min_pixels or int(loaded.size["shortest_edge"])
    high = max_pixels or int(loaded.size["longest_edge"])
    return ImageProcessor(
        pixel_format,
        SmartResize(pixel_format.factor, min(low, high) if min_pixels is None else low, high),
        image_token_id=image_token_id,
        resample=loaded.resample,
    )


def _size(image: Any) -> tuple[int, int]:
    size = getattr(image, "size", None)
    if not (isinstance(size, tuple) and len(size) == 2 and min(size) > 0):
        raise UserError(f"An image part must contain a PIL.Image.Image that is not empty, got {type(image).__name__}.")
    return size
