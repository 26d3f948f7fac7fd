"""`HfEngine` on vision-language models: what transformers computes, with pictures that come turn by turn."""

import asyncio
import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.engines.base import SamplingParams
from agentloop.engines.hf import HfEngine
from agentloop.errors import EngineError
from agentloop.loading import load_object
from agentloop.rendering import renderer_for
from agentloop.trajectory import SegmentKind, Trajectory
from agentloop.vision.loading import load_language_model
from agentloop.vision.tower import patches, upload

_MODELS = Path(__file__).parents[1] / "vision" / "models.py"
build_vision_model = load_object(f"{_MODELS}:build_vision_model", "function")
picture = load_object(f"{_MODELS}:picture", "function")
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


def show(trajectory, renderer, ids, pictures, kind=SegmentKind.OBSERVATION):
    seen = [renderer.vision.see(one) for one in pictures]
    trajectory.append(kind, ids, images=renderer.vision.place(ids, seen, len(trajectory)))


def opened(renderer, pictures, name="t", text="look"):
    parts = [{"type": "text", "text": text}, *({"type": "image", "image": one} for one in pictures)]
    trajectory = Trajectory(trajectory_id=name)
    show(trajectory, renderer, renderer.render_prompt([{"role": "user", "content": parts}]), pictures, "prompt")
    return trajectory


async def play(engine, renderer, trajectory, turns, seed=0):
    """`turns`: the pictures that answer each turn."""
    for number, pictures in enumerate([*turns, None]):
        params = SamplingParams(max_tokens=9, seed=seed + number)
        turn = await engine.generate(
            trajectory.ids, params, trajectory_id=trajectory.trajectory_id, images=trajectory.images
        )
        trajectory.append(SegmentKind.SAMPLED, turn.ids, logprobs=turn.logprobs, versions=turn.versions)
        if pictures is not None:
            parts = [{"type": "image", "image": one} for one in pictures]
            answer = renderer.render_continuation(turn.ids, [{"role": "tool", "content": parts}])
            trajectory.append(SegmentKind.TEMPLATE, answer.closing)
            show(trajectory, renderer, answer.observation, pictures)
    return trajectory


@torch.inference_mode()
def logprobs_of(model, trajectory):
    """Of the sampled tokens, by one plain forward of transformers."""
    row = trajectory.token_ids.astype(np.int64)
    is_picture = np.zeros(len(row), bool)
    for image in trajectory.images:
        is_picture[image.start : image.end] = True
    # A sampled image token is a word, for which transformers would look for a picture: an unused id with the same
    # embedding takes its place.
    model, spare = copy.deepcopy(model), model.config.get_text_config().vocab_size - 1
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    embeddings = model.get_input_embeddings().weight
    embeddings[spare] = embeddings[model.config.image_token_id]
    targets = row.copy()
    row[(row == model.config.image_token_id) & ~is_picture] = spare
    seen = [image.image for image in trajectory.images]
    out = model(
        input_ids=torch.from_numpy(row)[None],
        pixel_values=torch.cat([patches(one, s.format) for one, s in zip(upload(seen, "cpu"), seen, strict=True)]),
        image_grid_thw=torch.tensor([[1, *image.grid] for image in seen]),
        mm_token_type_ids=torch.from_numpy(is_picture.astype(np.int32))[None],
    )
    sampled = np.flatnonzero(trajectory.loss_mask)
    logprobs = torch.log_softmax(out.logits[0, sampled - 1].float(), -1)
    return logprobs.gather(1, torch.from_numpy(targets[sampled])[:, None])[:, 0].numpy()


async def test_logprobs_of_many_turns_are_those_of_transformers(make, folder):
    renderer = renderer_for(folder)
    # Chunks of 50 tokens cut pictures in two; fewer slots than episodes.
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


async def test_equal_tokens_of_unequal_pictures_share_nothing(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    model = load_language_model(one_folder, dtype=torch.float32, attention="sdpa").eval()
    for number in range(3):
        trajectory = opened(renderer, [picture(112, 112, number)], f"t{number}")
        await play(engine, renderer, trajectory, [])
        np.testing.assert_allclose(trajectory.logprobs[trajectory.loss_mask], logprobs_of(model, trajectory), atol=1e-4)


async def test_the_tower_runs_once_for_a_picture(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    sizes = []
    engine._worker.model.base_model.visual.register_forward_hook(lambda module, args, out: sizes.append(len(args[0])))
    first, second = picture(112, 112, 0), picture(56, 56, 1)
    trajectory = await play(engine, renderer, opened(renderer, [first], "a"), [[second], []])
    await play(engine, renderer, opened(renderer, [first], "b"), [])  # its prompt is in a slot already
    assert sizes == [image.image.num_patches for image in trajectory.images]


async def test_new_weights_see_anew(make, one_folder):
    renderer = renderer_for(one_folder)
    engine = await make(one_folder)
    await play(engine, renderer, opened(renderer, [picture(112, 112, 0)], "a"), [])
    model = load_language_model(one_folder, dtype=torch.float32, attention="sdpa").eval()
    with torch.no_grad():
        for parameter in model.model.visual.parameters():
            parameter.mul_(1.3)
    await engine.update_weights(model.named_parameters(), 1)
    trajectory = await play(engine, renderer, opened(renderer, [picture(112, 112, 0)], "b"), [])
    np.testing.assert_allclose(trajectory.logprobs[trajectory.loss_mask], logprobs_of(model, trajectory), atol=1e-4)


async def test_a_text_model_refuses_pictures(make, one_folder):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text_model = Qwen3ForCausalLM(Qwen3Config(vocab_size=2048, head_dim=16, num_key_value_heads=2, **sizes))
    engine = await make(text_model)
    trajectory = opened(renderer_for(one_folder), [picture(56, 56)])
    with pytest.raises(EngineError, match="no vision tower"):
        await play(engine, renderer_for(one_folder), trajectory, [])
