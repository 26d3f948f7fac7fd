"""The vision tower's attention over all images of a row gives the features and gradients of each image alone."""

from pathlib import Path

import pytest
import torch

from agentloop.registry.named_objects import load_object
from agentloop.trainer.model.attention import tower as tower_attention
from agentloop.vision.loading import load_language_model
from agentloop.vision.processor import image_processor_for
from agentloop.vision.tower import image_features, upload

_MODELS = Path(__file__).parents[3] / "agentloop" / "vision" / "models.py"
build_vision_model = load_object(f"{_MODELS}:build_vision_model", "function")
picture = load_object(f"{_MODELS}:picture", "function")
# Windows of two by two tokens: some whole, some cut by an edge, one image of a single token.
SIZES = [(100, 180), (28, 28), (150, 60), (112, 112)]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_batched_images_match_single_images(family, tmp_path):
    folder = build_vision_model(tmp_path / "model", family)
    processor = image_processor_for(folder)
    pixels = upload([processor.see(picture(*size, seed)) for seed, size in enumerate(SIZES)], "cpu")
    found = []
    for tower, rows in (("sdpa", [[one] for one in pixels]), (tower_attention.register("math"), [pixels])):
        model = load_language_model(folder, dtype=torch.float32, attention="sdpa", tower_attention=tower)
        assert model.model.visual.config._attn_implementation == tower
        features = torch.cat([image_features(model.model, row, processor.format) for row in rows])
        torch.manual_seed(0)
        (features * torch.randn_like(features)).sum().backward()
        found.append((features, {name: p.grad for name, p in model.model.visual.named_parameters()}))
    (alone, expected), (together, gradients) = found
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    for name, gradient in expected.items():
        # A bias of keys shifts all scores of a query alike: its gradient is rounding error.
        size = gradient.norm() + (expected["patch_embed.proj.weight"].norm() if name.endswith(".bias") else 0)
        assert (gradients[name] - gradient).norm() <= 1e-4 * size, name


def test_tower_attention_follows_decoder_attention():
    assert tower_attention.register("sdpa") == "sdpa"
    assert tower_attention.register("fa4") == tower_attention.register("fa2") == "agentloop_flash_tower_fa2"
