"""`VllmEngine` matches transformers and the learner, with images that arrive turn by turn."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from agentloop.config.learner import LearnerConfig
from agentloop.engines.base import SamplingParams
from agentloop.engines.vllm.engine import VllmEngine
from agentloop.errors import EngineError
from agentloop.registry.named_objects import load_object
from agentloop.rendering import renderer_for
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.learner.fsdp.learner import FsdpLearner
from agentloop.vision.loading import load_language_model
from agentloop.weights.tensors import TensorWeights

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

_VISION = Path(__file__).parents[2] / "vision"
build_vision_model = load_object(f"{_VISION / 'models.py'}:build_vision_model", "function")
picture = load_object(f"{_VISION / 'models.py'}:picture", "function")
opened = load_object(f"{_VISION / 'episodes.py'}:opened", "function")
play = load_object(f"{_VISION / 'episodes.py'}:play", "function")
logprobs_of = load_object(f"{_VISION / 'episodes.py'}:logprobs_of", "function")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_vision_model(tmp_path_factory.mktemp("model"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def renderer(folder):
    return renderer_for(folder)


@pytest.fixture(scope="module")
async def engine(folder):
    engine = VllmEngine(folder, dtype="float32", max_model_len=640, max_num_seqs=16)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
def sent(engine, monkeypatch):
    """Record for each later image of a prompt whether its pixels were sent to the engine core."""
    found = []
    cache = engine.llm.renderer.mm_processor_cache
    update = cache.get_and_update

    def spy(items, names):
        given = update(items, names)
        found.append([item is not None for item, _ in given])
        return given

    monkeypatch.setattr(cache, "get_and_update", spy)
    return found


def assert_close(trajectory, expected):
    np.testing.assert_allclose(trajectory.logprobs[trajectory.loss_mask], expected, atol=TOLERANCE)


async def test_turns_with_images_match_before_and_after_a_weight_update(engine, folder, renderer):
    learner = FsdpLearner(LearnerConfig(model=str(folder), device="cpu", lr=1e-2, share_prefixes=True))
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    tower = model.model.visual.patch_embed.proj.weight.detach().clone()
    shared = picture(100, 150)
    for version in range(2):
        trajectories = await asyncio.gather(
            *(
                play(
                    engine,
                    renderer,
                    # Two groups of two; the first shows its image twice.
                    opened(renderer, [shared] * (2 - i // 2), f"t{i}", group=f"g{i // 2}"),
                    [[picture(60 + 20 * i, 90, 10 + i), picture(90, 60, 5)], [], [picture(200, 60, 20 + i)]],
                    seed=10 * i,
                )
                for i in range(4)
            )
        )
        samples = [Sample.from_trajectory(one, advantage=number - 1.2) for number, one in enumerate(trajectories)]
        assert {v for one in trajectories for v in one.versions[one.loss_mask]} == {version}
        for trajectory, of_learner in zip(trajectories, learner.logprobs(samples), strict=True):
            assert_close(trajectory, of_learner)
            if version == 0:
                assert_close(trajectory, logprobs_of(model, trajectory))
        learner.step(TrainBatch(samples))
        await learner.publish(engine, version + 1)
    assert not torch.equal(learner.policy.model.model.visual.patch_embed.proj.weight, tower)
    await engine.update_weights(TensorWeights(model.named_parameters()), 0)


async def test_image_is_sent_once(engine, folder, renderer, sent):
    first, second = picture(112, 112, 31), picture(56, 56, 32)
    trajectory = await play(engine, renderer, opened(renderer, [first]), [[second, second], []])
    assert sent == [[True], [False, True, False], [False, False, False]]
    sent.clear()
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    await engine.update_weights(TensorWeights(model.named_parameters()), 0)
    trajectory = await play(engine, renderer, opened(renderer, [first]), [])
    assert sent == [[True]]  # what older weights saw is not used
    assert_close(trajectory, logprobs_of(model, trajectory))


async def test_turn_that_waits_through_an_update_keeps_its_images(engine, folder, renderer):
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    shown = picture(112, 112, 51)
    await play(engine, renderer, opened(renderer, [shown]), [])  # its features are in vLLM's cache
    await engine.pause()
    waiting = opened(renderer, [shown], "waiting", text="look again")
    running = asyncio.create_task(play(engine, renderer, waiting, []))
    while not engine.llm.output_processor.request_states:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await engine.update_weights(TensorWeights(model.named_parameters()), 0)
    await engine.resume()
    assert_close(await running, logprobs_of(model, waiting))


async def test_equal_tokens_of_different_images_share_no_cache(engine, folder, renderer):
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    seen = []
    for number in range(2):
        trajectory = await play(engine, renderer, opened(renderer, [picture(112, 112, number)], f"t{number}"), [])
        assert_close(trajectory, logprobs_of(model, trajectory))
        seen.append(trajectory.logprobs[trajectory.loss_mask])
    assert abs(seen[0] - seen[1]).max() > 100 * TOLERANCE


async def test_image_token_without_an_image_is_a_plain_token(engine, folder, renderer):
    model = load_language_model(folder, dtype=torch.float32, attention="sdpa").eval()
    trajectory = opened(renderer, [picture(56, 56, 3)])
    trajectory.append("observation", [5, renderer.vision.image_token_id, renderer.vision.image_token_id, 6])
    await play(engine, renderer, trajectory, [[picture(60, 60, 4)]])
    assert_close(trajectory, logprobs_of(model, trajectory))


async def test_unsupported_image_is_rejected_before_sending(engine, renderer, monkeypatch, sent):
    trajectory = opened(renderer, [picture(112, 112, 41)])
    params = SamplingParams(max_tokens=2, seed=0)
    monkeypatch.setattr(engine.llm.input_processor, "mm_encoder_cache_size", 8)
    with pytest.raises(EngineError, match=r"an image has 16 tokens, but vLLM has room for 8\. Raise max_pixels"):
        await engine.generate(trajectory.ids, params, trajectory_id="t", images=trajectory.images)
    monkeypatch.undo()
    multimodal = engine.llm.vllm_config.model_config.multimodal_config
    monkeypatch.setattr(multimodal, "mm_processor_cache_gb", 1000 / 2**30)
    with pytest.raises(EngineError, match=r"mm_processor_cache_gb"):
        await engine.generate(trajectory.ids, params, trajectory_id="t", images=trajectory.images)
    monkeypatch.undo()
    assert sent == []
    turn = await engine.generate(trajectory.ids, params, trajectory_id="t", images=trajectory.images)
    assert len(turn.ids) == 2
