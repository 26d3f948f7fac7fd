import asyncio
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agentloop.errors import FailureKind, UserError
from agentloop.tools import registry
from agentloop.tools.toolset import Toolset
from agentloop.tools.vision.zoom import ImageZoomIn
from agentloop.types.messages import ToolCall


def blank_image(width: int, height: int) -> Image.Image:
    """Every pixel says where it is."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x % 256, y % 256, x // 256 * 16 + y // 256], axis=-1).astype(np.uint8))


def zoom(tool: ImageZoomIn, images: list, **arguments):
    async def call():
        sessions = Toolset([tool]).sessions("t", task={}, seed=0, images=images)
        return await sessions.call(ToolCall(tool.name, arguments, "call_0"), math.inf)

    return asyncio.run(call())


def test_schema_matches_the_training_format():
    (schema,) = Toolset([registry.load("image_zoom_in_tool")]).schemas
    function = schema["function"]
    assert function["name"] == "image_zoom_in_tool"
    assert function["description"] == (
        "Zoom in on a specific region of an image by cropping it based on a bounding box (bbox) and an optional object "
        "label."
    )
    assert function["parameters"]["properties"] == {
        "bbox_2d": {
            "type": "array",
            "items": {"type": "number"},
            "minItems": 4,
            "maxItems": 4,
            "description": "The bounding box of the region to zoom in, as [x1, y1, x2, y2], where (x1, y1) is the "
            "top-left corner and (x2, y2) is the bottom-right corner.",
        },
        "label": {
            "type": "string",
            "description": "The name or label of the object in the specified bounding box (optional).",
        },
    }
    assert function["parameters"]["required"] == ["bbox_2d"]


def test_result_shows_and_names_the_region():
    image = blank_image(560, 420)
    result = zoom(ImageZoomIn(), [image], bbox_2d=[100, 50, 200, 150], label="cat")
    text, shown = result.content
    assert text["text"] == "Zoomed in on the image to the region [100, 50, 200, 150] with label cat."
    assert np.array_equal(shown["image"], image.crop((100, 50, 200, 150)))
    assert (result.is_error, result.reward, result.metrics) == (False, 0.0, {"success": 1.0})


@pytest.mark.parametrize(
    "bbox", [[200, 100, 100, 200], [9000, 9000, 9900, 9900], [math.nan, 0, 100, 100], [0, 0, math.inf, 10]]
)
def test_unusable_box_gives_feedback_and_a_penalty(bbox):
    result = zoom(ImageZoomIn(), [blank_image(560, 420)], bbox_2d=bbox)
    assert result.is_error
    assert result.failure is None
    assert result.reward == -0.05
    assert str(result.content).startswith("Error: The specified bounding box [")


@pytest.mark.parametrize("bbox", [None, "a", [1, 2, 3], [1, 2, 3, 4, 5], ["a", 1, 2, 3], {"x": 1}, [[1], 2, 3, 4], 7])
def test_malformed_box_fails_validation(bbox):
    result = zoom(ImageZoomIn(), [blank_image(560, 420)], bbox_2d=bbox)
    assert result.failure is FailureKind.MODEL
    assert "bbox_2d" in str(result.content)


def test_numeric_strings_are_accepted():
    assert not zoom(ImageZoomIn(), [blank_image(560, 420)], bbox_2d=["100", "50", "200", "150"]).is_error


def test_missing_and_excess_images_are_reported():
    assert "no image" in str(zoom(ImageZoomIn(), [], bbox_2d=[0, 0, 50, 50]).content)
    many = [blank_image(56, 56)] * 3
    assert "at most 3" in str(zoom(ImageZoomIn(max_images=3), many, bbox_2d=[0, 0, 50, 50]).content)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.integers(40, 1500),
    st.integers(40, 1500),
    st.sampled_from(["qwen2_5_vl", "qwen3_vl"]),
    st.sampled_from([300_000, 1 << 24]),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
    st.floats(0.1, 1),
    st.floats(0.1, 1),
)
def test_crop_matches_the_source_region(width, height, family, max_pixels, x, y, w, h):
    """In each family's way to write boxes, the crop equals that of Pillow."""
    tool = ImageZoomIn(family=family, max_pixels=max_pixels)
    if max(width, height) > 30 * min(width, height):
        return
    image = blank_image(width, height)
    seen = tool.seen_size(width, height)
    left, top, right, bottom = x, y, min(1.0, x + w), min(1.0, y + h)
    unit = (1000, 1000) if tool.frame == "norm1000" else seen
    bbox = [left * unit[0], top * unit[1], right * unit[0], bottom * unit[1]]
    if min((right - left) * seen[0], (bottom - top) * seen[1]) < 30:
        return
    crop = tool.crop(image, bbox)
    assert crop is not None
    if (right - left) * width * (bottom - top) * height > 0.8 * max_pixels:  # scaled down
        return
    # Of seen pixels whole ones are shown, of which each may be several of the source.
    slack = max(math.ceil(width / seen[0]), math.ceil(height / seen[1])) + 1
    first, last = np.asarray(crop)[0, 0].astype(int), np.asarray(crop)[-1, -1].astype(int)
    x1, y1 = first[0] + first[2] // 16 * 256, first[1] + first[2] % 16 * 256
    x2, y2 = last[0] + last[2] // 16 * 256 + 1, last[1] + last[2] % 16 * 256 + 1
    assert np.array_equal(crop, image.crop((x1, y1, x2, y2)))
    assert 0 <= left * width - x1 + 1e-3 <= slack + 2e-3
    assert 0 <= top * height - y1 + 1e-3 <= slack + 2e-3
    assert 0 <= x2 - right * width + 1e-3 <= slack + 2e-3
    assert 0 <= y2 - bottom * height + 1e-3 <= slack + 2e-3


@pytest.mark.slow
def test_large_image_is_cropped_at_full_resolution():
    """The model saw 1/4 of each side; the crop has all pixels of the source."""
    image = blank_image(4480, 3360)
    tool = ImageZoomIn(max_pixels=1120 * 840)
    assert tool.seen_size(4480, 3360) == (1120, 840)
    crop = tool.crop(image, [100, 100, 200, 200])
    assert np.array_equal(crop, image.crop((400, 400, 800, 800)))


@pytest.mark.slow
def test_crop_above_the_pixel_limit_is_scaled_down():
    crop = ImageZoomIn(max_pixels=1120 * 840).crop(blank_image(4480, 3360), [0, 0, 1120, 840])
    assert crop.width * crop.height <= 1120 * 840


def test_nested_zoom_uses_the_frame_of_the_last_image():
    first, second = blank_image(560, 420), blank_image(280, 280)
    box = [100, 100, 200, 200]
    assert np.array_equal(zoom(ImageZoomIn(nested=True), [first, second], bbox_2d=box).content[1]["image"],
                          second.crop(tuple(box)))  # fmt: skip
    assert np.array_equal(zoom(ImageZoomIn(), [first, second], bbox_2d=box).content[1]["image"],
                          first.crop(tuple(box)))  # fmt: skip


def test_unknown_family_is_named():
    with pytest.raises(UserError, match="llava"):
        ImageZoomIn(family="llava")


def test_grey_image_becomes_rgb():
    grey = Image.effect_noise((560, 420), 50)
    assert ImageZoomIn().crop(grey, [0, 0, 100, 100]).mode == "RGB"


def test_same_call_returns_the_same_crop(tmp_path):
    random.seed(0)
    image = blank_image(560, 420)
    assert np.array_equal(*[zoom(ImageZoomIn(), [image], bbox_2d=[1, 2, 90, 80]).content[1]["image"] for _ in "ab"])
