"""Images are scaled and split like in transformers, and have the right tokens in a rendered conversation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor

from agentloop.errors import UserError
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.types.image import PixelFormat, SeenImage
from agentloop.vision.processor import ImageProcessor, image_processor_for
from agentloop.vision.seen_size import SmartResize
from agentloop.vision.tower import patches, upload

picture = load_object(f"{Path(__file__).parent / 'models.py'}:picture", "function")
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
HALF = (0.5, 0.5, 0.5)
FORMAT = PixelFormat(patch_size=14, merge_size=2, temporal_patch_size=2, scale=1 / 255, mean=HALF, std=HALF)
PROCESSOR = ImageProcessor(FORMAT, SmartResize(28, 56 * 56, 112 * 112), image_token_id=9)


@pytest.mark.parametrize("family", FAMILIES)
def test_tower_inputs_match_transformers(vision_model, family):
    folder = vision_model(family)
    pictures = [picture(100, 180), picture(30, 40), picture(500, 300), picture(224, 224), picture(9, 1000)]
    expected = AutoImageProcessor.from_pretrained(folder, backend="pil")(images=pictures, return_tensors="pt")
    processor = image_processor_for(folder)
    seen = [processor.see(one) for one in pictures]
    assert [[1, *image.grid] for image in seen] == expected.image_grid_thw.tolist()
    assert [processor.num_tokens(one) for one in pictures] == [image.num_tokens for image in seen]
    found = torch.cat([patches(one, image.format) for one, image in zip(upload(seen, "cpu"), seen, strict=True)])
    torch.testing.assert_close(found, expected.pixel_values, rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 900), st.integers(1, 900))
def test_token_count_follows_from_the_size_alone(width, height):
    one = Image.new("RGB", (width, height))
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(UserError, match="too elongated"):
            PROCESSOR.num_tokens(one)
        return
    seen = PROCESSOR.see(one)
    assert PROCESSOR.num_tokens(one) == seen.num_tokens


def test_image_is_scaled_once_while_referenced():
    first, again = picture(90, 60, 1), picture(90, 60, 1)
    seen = PROCESSOR.see(first)
    assert PROCESSOR.see(first) is seen
    assert PROCESSOR.see(again) is not seen
    assert PROCESSOR.see(again).digest == seen.digest
    assert PROCESSOR.see(picture(90, 60, 2)).digest != seen.digest


def test_other_image_modes_are_converted_to_rgb():
    grey = picture(56, 56).convert("L")
    assert PROCESSOR.see(grey).pixels.shape == (56, 56, 3)


@pytest.mark.parametrize("what", ["picture.png", None, b"\x89PNG"])
def test_non_images_are_rejected(what):
    with pytest.raises(UserError, match=r"must contain a PIL\.Image\.Image"):
        PROCESSOR.num_tokens(what)


@pytest.mark.parametrize("shape", [(27, 28, 3), (28, 28, 4), (0, 28, 3)])
def test_pixels_form_whole_tokens(shape):
    with pytest.raises(ValueError, match="sides that are multiples of 28"):
        SeenImage(np.zeros(shape, np.uint8), FORMAT)


def test_image_tokens_expand_once_and_are_located():
    pictures = [picture(56, 56), picture(112, 56)]
    ids = PROCESSOR.expand([1, 9, 2, 3, 9, 4], [PROCESSOR.num_tokens(one) for one in pictures])
    assert ids == [1, 9, 9, 9, 9, 2, 3, 9, 9, 9, 9, 9, 9, 9, 9, 4]
    placed = PROCESSOR.place(ids, [PROCESSOR.see(one) for one in pictures], offset=100)
    assert [(image.start, image.end) for image in placed] == [(101, 105), (107, 115)]


@pytest.mark.parametrize("counts", [[], [4, 4]])
def test_template_shows_each_image_once(counts):
    with pytest.raises(UserError, match=f"1 images, but the messages have {len(counts)}"):
        PROCESSOR.expand([1, 9, 2], counts)


@pytest.mark.parametrize("family", FAMILIES)
def test_conversation_renders_with_all_image_tokens(vision_model, family):
    renderer = renderer_for(vision_model(family))
    parts = [{"type": "image", "image": picture(90, 60)}, {"type": "text", "text": "<|image_pad|>?"}]
    ids = renderer.render_prompt([{"role": "user", "content": parts}])
    num = renderer.vision.num_tokens(parts[0]["image"])
    pads = "<|image_pad|>" * num
    assert renderer.decode(ids) == (
        f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|><|image_pad|>?<|im_end|>\n<|im_start|>assistant\n"
    )
    # User text stays text even if it spells an image token.
    assert ids.count(renderer.vision.image_token_id) == num
    result = [{"role": "tool", "content": [{"type": "text", "text": "See "}, parts[0]]}]
    observation = renderer.render_continuation([renderer.stop_token_ids[0]], result).observation
    assert observation.count(renderer.vision.image_token_id) == num


def test_size_bounds_can_be_configured(vision_model):
    renderer = renderer_for(vision_model("qwen2_5_vl"), max_pixels=56 * 56)
    assert renderer.vision.num_tokens(picture(500, 500)) == 4


def test_vision_model_without_processor_raises(vision_model, tmp_path):
    for file in vision_model("qwen2_vl").iterdir():
        if file.name not in ("preprocessor_config.json", "model.safetensors"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match=r"Copy preprocessor_config\.json"):
        renderer_for(tmp_path)
