"""Image features among embeddings match the forward of transformers."""

from pathlib import Path

import pytest
import torch

from agentloop.registry.named_objects import load_object
from agentloop.vision.loading import load_language_model
from agentloop.vision.positions import rope_positions
from agentloop.vision.processor import image_processor_for
from agentloop.vision.tower import embedded, image_features, patches, token_index, upload

picture = load_object(f"{Path(__file__).parent / 'models.py'}:picture", "function")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@torch.inference_mode()
def test_logits_match_transformers(vision_model, family):
    folder = vision_model(family)
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    processor = image_processor_for(folder)
    seen = [processor.see(one) for one in (picture(100, 180, 1), picture(60, 60, 2))]
    token = processor.image_token_id
    ids = processor.expand([5, token, 6, 7, token, 8, 9], [image.num_tokens for image in seen])
    row, pixels = torch.tensor(ids)[None], upload(seen, "cpu")
    expected = model(
        input_ids=row,
        pixel_values=torch.cat([patches(one, image.format) for one, image in zip(pixels, seen, strict=True)]),
        image_grid_thw=torch.tensor([[1, *image.grid] for image in seen]),
        mm_token_type_ids=(row == token).int(),
    ).logits
    placed = processor.place(ids, seen)
    index = torch.from_numpy(token_index([image.start for image in placed], seen))
    inputs = embedded(model.model, row, image_features(model.model, pixels, processor.format), index)
    positions = torch.from_numpy(rope_positions(len(ids), placed))[:, None]
    found = model.lm_head(model.model.language_model(**inputs, position_ids=positions).last_hidden_state)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_sampled_image_token_is_a_plain_token(vision_model):
    folder = vision_model("qwen2_5_vl")
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    processor = image_processor_for(folder)
    seen = [processor.see(picture(60, 60))]
    token = processor.image_token_id
    row = torch.tensor([[5, *[token] * seen[0].num_tokens, 6, token]])
    index = torch.arange(1, 1 + seen[0].num_tokens)
    features = image_features(model.model, upload(seen, "cpu"), processor.format)
    embeddings = embedded(model.model, row, features, index)["inputs_embeds"][0]
    assert torch.equal(embeddings[index], features[:, 0])
    assert torch.equal(embeddings[-1], model.get_input_embeddings().weight[token])
