"""`ImageZoomIn`: shows the model a region of an image in full resolution.

It is the tool of DeepEyes (arXiv 2505.14362), with the names, schema and messages of verl 0.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentloop.errors import UserError
from agentloop.process.threads import DECODING
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
"""`model_type` -> (coordinates in which the family writes boxes, factor of its image sizes)."""


def _no_default(schema: dict[str, Any]) -> None:
    """Remove the default of the label, which the schema that models were trained with does not have."""
    schema.pop("default", None)


class ImageZoomIn(Tool):
    """Zoom tool of DeepEyes and verl, with the same name, schema and messages."""

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
        """Configure the tool for a model family. Raises `UserError` for an unknown family.

        `family` is the `model_type`. It decides whether boxes are in pixels of the image as seen (Qwen2.5-VL) or in
        thousandths of its sides (Qwen3-VL); `frame` overrides it. `min_pixels` and `max_pixels` are the limits of the
        model's processor, and larger crops are scaled down. `resolve_box` explains `policy`. With `nested` a box
        refers to the last image shown, otherwise to the first one of the prompt. `max_images` limits the images of a
        trajectory.
        """
        if family not in _FAMILIES:
            raise UserError(
                f"image_zoom_in_tool does not know the family {family!r}: set family to one of {', '.join(_FAMILIES)}, "
                "or to the most similar one and frame to pixel_seen, pixel_source or norm1000."
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
        crop = await DECODING.run(self.crop, image, bbox_2d)
        if crop is None:
            return _refused(
                f"Error: The specified bounding box {_plain(bbox_2d)} is invalid or results in a crop smaller than the "
                "minimum size of 28x28."
            )
        region = f"Zoomed in on the image to the region {_plain(bbox_2d)}" + (f" with label {label}." if label else ".")
        parts: list[TextPart | ImagePart] = [{"type": "text", "text": region}, {"type": "image", "image": crop}]
        return ToolResult(parts, metrics={"success": 1.0})

    def crop(self, image: Image.Image, bbox: Any) -> Image.Image | None:
        """Crop the region of `bbox` from the source image. Returns None if the box is refused."""
        seen = self.seen_size(*image.size)
        box = resolve_box(to_seen(bbox, self.frame, seen, image.size), *seen, self.policy)
        if box is None:
            return None
        region = image.convert("RGB").crop(to_source(box, seen, image.size))
        try:
            target = self.seen_size(*region.size)
        except UserError:  # too long for the processor
            return None
        larger = region.width * region.height > self.seen_size.max_pixels
        return region.resize(target) if larger else region


def _refused(text: str) -> ToolResult:
    # The reward is the penalty of verl's tool.
    return ToolResult(text, is_error=True, reward=-0.05, metrics={"success": 0.0})


def _plain(bbox: list[float]) -> list[float]:
    """Return the box as the model wrote it: 100 instead of 100.0."""
    return [int(value) if float(value).is_integer() else value for value in bbox]
