"""Rotary positions, token by token and as the models themselves compute them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.registry.named_objects import load_object
from agentloop.types.image import PixelFormat, PlacedImage, SeenImage
from agentloop.vision.loading import load_language_model
from agentloop.vision.positions import rope_positions
from agentloop.vision.processor import image_processor_for

picture = load_object(f"{Path(__file__).parent / 'models.py'}:picture", "function")


def test_text_positions_continue_from_the_longer_image_side():
    pixel_format = PixelFormat(14, 2, 2, 1.0, (0.0,) * 3, (1.0,) * 3)
    image = SeenImage(np.zeros((56, 84, 3), np.uint8), pixel_format)  # 2 x 3 tokens
    assert rope_positions(10, [PlacedImage(image, 2)]).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert rope_positions(3, []).tolist() == [[0, 1, 2]] * 3


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_match_transformers(vision_model, family):
    folder = vision_model(family)
    processor = image_processor_for(folder)
    seen = [processor.see(one) for one in (picture(100, 180), picture(30, 40), picture(224, 60))]
    token = processor.image_token_id
    ids = processor.expand([token, 5, 6, token, 7, 8, token], [image.num_tokens for image in seen])
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa")
    row = torch.tensor(ids)[None]
    grids = torch.tensor([[1, *image.grid] for image in seen])
    expected, _ = model.model.get_rope_index(row, (row == token).int(), image_grid_thw=grids)
    assert np.array_equal(rope_positions(len(ids), processor.place(ids, seen)), expected[:, 0].numpy())
