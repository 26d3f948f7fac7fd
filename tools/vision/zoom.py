"""`ImageZoomIn`: the model asks for a region of a picture and gets it in full resolution.

DeepEyes, arXiv 2505.14362; names, schema and texts are those of verl 0.7.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentloop.errors import UserError
from agentloop.tools.base import Tool, ToolContext, ToolResult
from agentloop.tools.vision.boxes import Frame, Policy, resolve_box, to_seen, to_source
from agentloop.types.messages import ImagePart, TextPart
from agentloop.vision.seen_size import SmartResize

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ImageZoomIn", "resolve_box"]

_FAMILIES: dict[str, tuple[Frame, int]] = {
    "qwen2_vl": ("pixel_seen", 28),
    "qwen2_5_vl": ("pixel_seen", 28),
    "qwen3_vl": ("norm1000", 32),
    "qwen3_vl_moe": ("norm1000", 32),
    "internvl": ("norm1000", 28),
}
"""`model_type` of the config -> how the family was trained to write boxes, and the unit of its picture sizes."""


def _no_default(schema: dict[str, Any]) -> None:
    """The schema that models were trained with says of the label that it is optional and no more."""
    schema.pop("default", None)


class ImageZoomIn(Tool):
    """The zoom tool of DeepEyes and verl: same name, schema and texts."""

    name = "image_zoom_in_tool"
    description = (
        "Zoom in on a specific region of an image by cropping it based on a bounding box (bbox) and an optional object "
        "label."
    )

    def __init__(
        self,
        *,
        family: str = "qwen2_5_vl",
        frame: Frame | None = None,
        policy: Policy = "kind",
        nested: bool = False,
        min_pixels: int = 56 * 56,
        max_pixels: int = 28 * 28 * 1280,
        max_images: int = 16,
    ) -> None:
        """`family`: the model's `model_type`, which says how it writes boxes: in pixels of the picture as it saw it
        (Qwen2.5-VL) or in thousandths of its sides (Qwen3-VL); `frame` overrides that. `min_pixels` and `max_pixels`
        are those of its processor; a crop above them is scaled down. `policy`: see `resolve_box`. With `nested` a box
        is one of the last picture shown, with the prompt's first picture as the start; without, always of the first.
        `max_images`: pictures that one trajectory may show.

        Raises `UserError` for an unknown family.
        """
        if family not in _FAMILIES:
            raise UserError(
                f"image_zoom_in_tool does not know how the family {family!r} writes boxes: set family to one of "
                f"{', '.join(_FAMILIES)}, or the nearest of them and frame to pixel_seen, pixel_source or norm1000."
            )
        usual, factor = _FAMILIES[family]
        self.frame = frame or usual
        self.policy = policy
        self.nested = nested
        self.max_images = max_images
        self.seen_size = SmartResize(factor, min_pixels, max_pixels)

    async def call(
        self,
        ctx: ToolContext,
        bbox_2d: Annotated[
            list[float],
            Field(
                min_length=4,
                max_length=4,
                description="The bounding box of the region to zoom in, as [x1, y1, x2, y2], where (x1, y1) is the "
                "top-left corner and (x2, y2) is the bottom-right corner.",
            ),
        ],
        label: Annotated[
            str,
            Field(
                description="The name or label of the object in the specified bounding box (optional).",
                json_schema_extra=_no_default,
            ),
        ] = "",
    ) -> ToolResult:
        if not ctx.images:
            return _refused("Error: there is no image to zoom in on.")
        if len(ctx.images) >= self.max_images:
            return _refused(f"Error: at most {self.max_images} images may be shown. Answer with what you have seen.")
        image = ctx.images[-1 if self.nested else 0]
        crop = await asyncio.to_thread(self.crop, image, bbox_2d)
        if crop is None:
            return _refused(
                f"Error: The specified bounding box {_plain(bbox_2d)} is invalid or results in a crop smaller than the "
                "minimum size of 28x28."
            )
        region = f"Zoomed in on the image to the region {_plain(bbox_2d)}" + (f" with label {label}." if label else ".")
        parts: list[TextPart | ImagePart] = [{"type": "text", "text": region}, {"type": "image", "image": crop}]
        return ToolResult(parts, metrics={"success": 1.0})

    def crop(self, image: Image.Image, bbox: Any) -> Image.Image | None:
        """The region that a model means by `bbox`, out of the source picture; None where the box is refused."""
        seen = self.seen_size(*image.size)
        box = resolve_box(to_seen(bbox, self.frame, seen, image.size), *seen, self.policy)
        if box is None:
            return None
        region = image.convert("RGB").crop(to_source(box, seen, image.size))
        try:
            target = self.seen_size(*region.size)
        except UserError:  # longer than the processor takes
            return None
        larger = region.width * region.height > self.seen_size.max_pixels
        return region.resize(target) if larger else region


def _refused(text: str) -> ToolResult:
    # The penalty of verl's tool.
    return ToolResult(text, is_error=True, reward=-0.05, metrics={"success": 0.0})


def _plain(bbox: list[float]) -> list[float]:
    """As the model wrote it: 100 and not 100.0."""
    return [int(value) if float(value).is_integer() else value for value in bbox]
