"""`HfEngine` on vision-language models matches transformers, with images that arrive turn by turn."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.engines.hf.engine import HfEngine
from agentloop.errors import EngineError
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.vision.loading import load_language_model
from agentloop.weights.tensors import TensorWeights

_MODELS = Path(__file__).parents[2] / "vision" / "models.py"
build_vision_model = load_object(f"{_MODELS}:build_vision_model", "function")
picture = load_object(f"{_MODELS}:picture", "function")
_EPISODES = _MODELS.with_name("episodes.py")
opened = load_object(f"{_EPISODES}:opened", "function")
play = load_object(f"{_EPISODES}:play", "function")
logprobs_of = load_object(f"{_EPISODES}:logprobs_of", "function")
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return build_vision_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    return build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture
async def make():
    engines = []

    async def start(folder, **options):
        engines.append(HfEngine(folder, device="cpu", seed=0, max_model_len=600, **options))
        await engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        await engine.close()


@pytest.mark.slow
async def test_logprobs_of_many_turns_match_transformers(make, folder):
    renderer = renderer_for(folder)
    # Chunks of 50 tokens split images; there are fewer slots than episodes.
    engine = await make(folder, max_batch_tokens=50, max_slots=3)
    trajectories = await asyncio.gather(
        *(
            play(
                engine,
                renderer,
                opened(renderer, [picture(100 + 30 * i, 150, i)], f"t{i}"),
                [[picture(60, 90, 10 + i), picture(90, 60, 5)], [], [picture(200, 60, 20 + i)]],
                seed=100 * i,
            )
            for i in range(4)
        )
    )
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    for trajectory in trajectories:
        assert len(trajectory.images) == 4
        mask = trajectory.loss_mask
        np.testing.assert_allclose(trajectory.logprobs[mask], logprobs_of(model, trajectory), atol=1e-4)


async def test_equal_tokens_of_different_images_share_no_cache(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    model = load_language_model(one_folder, dtype=torch.float32, attention="sdpa").eval()
    for number in range(3):
        trajectory = opened(renderer, [picture(112, 112, number)], f"t{number}")
        await play(engine, renderer, trajectory, [])
        np.testing.assert_allclose(trajectory.logprobs[trajectory.loss_mask], logprobs_of(model, trajectory), atol=1e-4)


async def test_vision_tower_runs_once_per_image(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    sizes = []
    engine.model.base_model.visual.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    first, second = picture(112, 112, 0), picture(56, 56, 1)
    trajectory = await play(engine, renderer, opened(renderer, [first], "a"), [[second], []])
    await play(engine, renderer, opened(renderer, [first], "b"), [])  # its prompt is in a slot already
    assert sizes == [image.image.num_patches for image in trajectory.images]


async def test_new_weights_recompute_image_features(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    await play(engine, renderer, opened(renderer, [picture(112, 112, 0)], "a"), [])
    model = load_language_model(one_folder, dtype=torch.float32, attention="sdpa").eval()
    with torch.no_grad():
        for parameter in model.model.visual.parameters():
            parameter.mul_(1.3)
    await engine.update_weights(TensorWeights(model.named_parameters()), 1)
    trajectory = await play(engine, renderer, opened(renderer, [picture(112, 112, 0)], "b"), [])
    np.testing.assert_allclose(trajectory.logprobs[trajectory.loss_mask], logprobs_of(model, trajectory), atol=1e-4)


async def test_text_model_rejects_images(make, one_folder):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text_model = Qwen3ForCausalLM(Qwen3Config(vocab_size=2048, head_dim=16, num_key_value_heads=2, **sizes))
    engine = await make(text_model)
    trajectory = opened(renderer_for(one_folder), [picture(56, 56)])
    with pytest.raises(EngineError, match="no vision tower"):
        await play(engine, renderer_for(one_folder), trajectory, [])
